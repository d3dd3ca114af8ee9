from dataclasses import dataclass

import pytest

from telemetry.settings import SettingsError, parse, setting


@dataclass(frozen=True)
class Example:
    """An example."""

    name: str = setting("a name")
    count: int = setting("a count", 3)
    ratio: float = setting("a ratio, 50% say", 0.5)
    loud: bool = setting("shout", False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("--count must not be negative")


def read(*arguments: str, **environment: str) -> Example:
    return parse(Example, "example", arguments, environment)


def test_flags_win_over_variables_over_defaults() -> None:
    assert read("--name", "a", "--loud") == Example("a", 3, 0.5, True)
    assert read(ENGINESCOPE_NAME="b", ENGINESCOPE_COUNT="4", ENGINESCOPE_LOUD="true") == Example("b", 4, 0.5, True)
    assert read("--name", "a", "--count=5", ENGINESCOPE_COUNT="4").count == 5


def test_programs_can_share_an_environment() -> None:
    environment = {"ENGINESCOPE_NAME": "engine", "ENGINESCOPE_SIDECAR_NAME": "sidecar"}
    assert parse(Example, "example", [], environment).name == "engine"
    assert parse(Example, "example", [], environment, "ENGINESCOPE_SIDECAR_").name == "sidecar"


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--name", "a", "--count", "many"], {}, "--count takes a whole number, not 'many'"),
        (["--name", "a", "--count", "-1"], {}, "--count must not be negative"),
        (["--name", "a", "--nmae", "b"], {}, "unrecognized arguments"),
        (["--name", "a", "--cou", "3"], {}, "unrecognized arguments"),
        ([], {}, "missing --name"),
        (["--name", "a"], {"ENGINESCOPE_RATIO": "x"}, "ENGINESCOPE_RATIO takes a number, not 'x'"),
        (["--name", "a"], {"ENGINESCOPE_LOUD": "maybe"}, "ENGINESCOPE_LOUD takes true or false, not 'maybe'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parse(Example, "example", arguments, environment)


def test_help_names_flags_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    shown = capsys.readouterr().out
    assert "--count" in shown
    assert "a ratio, 50% say (default: 0.5)" in shown
