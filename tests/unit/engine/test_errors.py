from pathlib import Path

import pytest

from instrumented_engine.api import reference
from instrumented_engine.api.errors import (
    INTERNAL,
    NOT_FOUND,
    PROTOCOL,
    SHED_MEANINGS,
    TABLE,
    ApiError,
    OverloadError,
    class_of,
)
from telemetry.layout import API, ERROR_CLASSES, SHED_REASONS


def test_the_table_and_the_slots_are_the_same() -> None:
    assert tuple(error_class.name for error_class in TABLE) == ERROR_CLASSES
    assert {f"errors_{error_class.name}" for error_class in TABLE} <= set(API.slots)


def test_the_page_is_current_and_its_check_fails_when_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reference.main(["--check"]) == 0
    monkeypatch.setattr(reference, "PAGE", tmp_path / "docs" / "errors.md")
    assert reference.main(["--check"]) == 1
    assert "python -m instrumented_engine.api.reference" in capsys.readouterr().err
    assert (reference.main([]), reference.main(["--check"]), reference.main(["--chekc"])) == (0, 0, 2)


def test_every_reason_to_refuse_has_a_meaning() -> None:
    assert tuple(SHED_MEANINGS) == SHED_REASONS


@pytest.mark.parametrize(
    ("status", "name"),
    [(400, "protocol"), (404, "not_found"), (405, "not_found"), (413, "too_large"), (500, "internal"),
     (501, "internal"), (503, "overload"), (504, "timeout")],
)  # fmt: skip
def test_every_status_has_a_class(status: int, name: str) -> None:
    assert class_of(status).name == name


def test_only_what_waiting_helps_says_when_to_come_back() -> None:
    assert OverloadError("waiting", "x").headers() == {"Retry-After": "1"}
    assert ApiError(INTERNAL, "x").headers() == {}
    assert ApiError(PROTOCOL, "x").headers() == {"Connection": "close"}


def test_a_status_of_its_own_is_in_the_body_too() -> None:
    error = ApiError(NOT_FOUND, "x", status=405)
    assert (error.status, error.body()["error"]["code"]) == (405, 405)
