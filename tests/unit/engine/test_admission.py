from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from instrumented_engine.api.admission import Admission, Gate, Load
from instrumented_engine.config import EngineSettings
from telemetry.layout import API, SHED_REASONS
from telemetry.scoreboard import Writer


class Cores:
    loads: Sequence[Load] = (Load(0, 0, 0.0),)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path, API)
    yield writer
    writer.close()


def reason(page: Writer, *loads: Load) -> str | None:
    cores = Cores()
    cores.loads = loads
    refused = Admission(EngineSettings(), cores, Gate(page), lambda: 0.0).refusal()
    return refused.reason if refused else None


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([Load(0, 0, 0.0)], None),
        ([Load(2047, 999, 4.9)], None),
        ([Load(2048, 0, 0.0)], "waiting"),
        ([Load(0, 1000, 0.0)], "output_depth"),
        ([Load(0, 1, 5.0)], "output_age"),
        ([], "no_core"),
        ([Load(2048, 0, 0.0), Load(2047, 999, 4.9)], None),
        ([Load(0, 1000, 0.0), Load(0, 1, 5.0), Load(9, 0, 0.0)], None),
        ([Load(3000, 0, 0.0), Load(2048, 0, 9.0)], "waiting"),
        ([Load(3000, 0, 0.0), Load(0, 1, 5.0)], "output_age"),
    ],
)
def test_each_bound_pushes_back_when_no_core_is_within_it(
    page: Writer, loads: list[Load], expected: str | None
) -> None:
    assert reason(page, *loads) == expected


def test_the_gate_goes_before_the_bounds(page: Writer) -> None:
    gate = Gate(page)
    gate.reload()
    assert reason(page) == "reloading"
    gate.open()
    assert reason(page, Load(0, 0, 0.0)) is None
    gate.drain()
    gate.reload()
    gate.open()
    assert reason(page, Load(0, 0, 0.0)) == "draining"
    refused = gate.refusal
    assert refused is not None
    assert refused.headers() == {"Retry-After": "1", "Connection": "close"}


def test_the_adaptive_limit_is_off_unless_asked_for(page: Writer) -> None:
    def count(settings: EngineSettings) -> int:
        admission = Admission(settings, Cores(), Gate(page), lambda: 0.0)
        return sum(admission.refusal() is None for _ in range(500))

    assert count(EngineSettings()) == 500
    assert count(EngineSettings(adaptive_limit=True)) == 10


def test_every_reason_has_a_slot(page: Writer) -> None:
    for name in SHED_REASONS:
        assert page[f"shed_{name}"] == 0
