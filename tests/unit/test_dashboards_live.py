"""What the answers of a Prometheus say of a panel. The whole check runs on a real stack in tests/e2e."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dashboards.live import Verdict, _numbers, known_traces
from dashboards.model import Panel, Query
from dashboards.prometheus import Line, Server, _line
from enginescope.probe import ProbeError

MOVING = Line({}, [(1.0, 1.0), (2.0, 2.0)])
STILL = Line({}, [(1.0, 1.0), (2.0, 1.0)])
LOAD, OTHER = Query("a", "load"), Query("b", "other", optional="there is none while all is well")


def panel(*queries: Query, steady: str = "", hardware: str = "") -> Panel:
    return Panel(id=1, title="", says="", queries=queries, steady=steady, hardware=hardware)


@pytest.mark.parametrize(
    ("shown", "answers", "verdict", "why"),
    [
        (panel(LOAD), [[STILL, MOVING]], Verdict.MOVES, ""),
        (panel(LOAD, OTHER), [[MOVING], []], Verdict.MOVES, ""),
        (panel(LOAD), [[]], Verdict.NO_DATA, "of load"),
        (panel(LOAD, steady="a setting"), [[]], Verdict.NO_DATA, "of load"),
        (panel(LOAD, OTHER), [[], [MOVING]], Verdict.NO_DATA, "of load"),
        (panel(LOAD), [[STILL]], Verdict.STILL, "the same values for 120 s"),
        (panel(LOAD, steady="a setting"), [[STILL]], Verdict.STEADY, "a setting"),
        (panel(OTHER), [[]], Verdict.QUIET, "there is none while all is well"),
        (panel(OTHER, hardware="a GPU"), [[]], Verdict.NOT_HERE, "a GPU"),
        (panel(OTHER, hardware="a GPU"), [[STILL]], Verdict.STEADY, "a GPU"),
    ],
)
def test_a_panel_is_judged_by_its_answers(shown: Panel, answers: list[list[Line]], verdict: Verdict, why: str) -> None:
    assert _numbers(shown, shown.queries, answers) == (verdict, why)


def test_what_is_no_number_is_no_data() -> None:
    found = _line({"metric": {"a": "b"}, "values": [[1, "NaN"], [2, "3"], [3, "+Inf"]]})
    assert found == Line({"a": "b"}, [(2.0, 3.0)])
    assert all(math.isfinite(value) for _, value in found.points)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "http://", "http://127.0.0.1:many", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_one_sentence(url: str) -> None:
    with pytest.raises(ProbeError, match="is not the address of a Prometheus"):
        Server(url)


def test_nobody_has_a_trace_where_there_is_nothing(tmp_path: Path) -> None:
    assert not known_traces(tmp_path)("00" * 16)
    assert not known_traces(tmp_path, "http://127.0.0.1:1")("00" * 16)
    with pytest.raises(ProbeError, match="is not the address of an OTLP sink"):
        known_traces(tmp_path, "127.0.0.1:4318")
