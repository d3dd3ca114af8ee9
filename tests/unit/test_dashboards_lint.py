"""Each fault that the linter knows, planted in a dashboard that has none."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from dashboards import build, variables
from dashboards.lint import lint, parse_problems
from enginescope import toolchain

BUILT = [json.loads(text) for text in build.texts().values()]
Json = dict[str, Any]


def planted(change: Callable[[Json, Json], object]) -> list[str]:
    """The faults after a change of the second dashboard and its fourth panel (id 103)."""
    found = copy.deepcopy(BUILT)
    panel = next(panel for panel in found[1]["panels"] if panel["id"] == 103)
    change(found[1], panel)
    return lint(found)


def expression(text: str) -> Callable[[Json, Json], object]:
    return lambda _, panel: panel["targets"][0].update(expr=text)


def test_the_built_dashboards_have_no_fault() -> None:
    assert lint(BUILT) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda board, _: board.pop("uid"), "has no uid"),
        (lambda board, _: board.update(title=""), "has no title"),
        (lambda board, _: board.update(editable=True), "is editable"),
        (lambda _, panel: panel.update(type="timeseriez"), "panel 103 has the unknown type 'timeseriez'"),
        (lambda _, panel: panel.update(targets=[]), "panel 103 has no query"),
        (lambda _, panel: panel["datasource"].update(uid="x"), "the data source of the panel is no variable"),
        (lambda _, panel: panel["targets"].append(panel["targets"][0]), "panel 103 has several queries A"),
        (lambda _, panel: panel["gridPos"].update(x="zero"), "panel 103 has no place in the grid"),
        (lambda _, panel: panel["gridPos"].update(x=20), "panel 103 leaves the grid"),
        (lambda _, panel: panel["gridPos"].update(x=8), "panel 103 overlaps panel 102"),
        (lambda _, panel: panel["gridPos"].update(w=7), "has a gap in the grid at line 1"),
        (lambda _, panel: panel.update(title=""), "panel 103 has no title"),
        (lambda _, panel: panel.update(title="Listeners"), "has several panels titled 'Listeners'"),
        (lambda _, panel: panel.update(description="fill"), "panel 103 has no description in whole sentences"),
        (lambda _, panel: panel["fieldConfig"]["defaults"].pop("unit"), "panel 103 has the unit None"),
        (lambda _, panel: panel.update(id=101), "several panels have the id 101"),
        (lambda _, panel: panel.update(id=199), "tcp_backlog_full is seen in panel 103 of enginescope-sockets, which"),
        (lambda board, _: board.update(uid="enginescope-overview"), "several dashboards have the uid"),
        (lambda _, panel: panel.update(description="See /d/enginescope-traces?viewPanel=42."), "leads to panel 42 of"),
        (lambda _, panel: panel.update(title="Fill at $stage"), "panel 103 uses the variable $stage"),
        (expression('enginescope_engine_up{engine="${engines}"}'), "panel 103 uses the variable $engines"),
        (expression('enginescope_engine_uq{engine="$engine"}'), "reads enginescope_engine_uq, which neither"),
        (expression('enginescope_engine_up{engine="$engine"} or vector(0)'), "invents a value with vector()"),
        (expression("max(enginescope_engine_up)"), "reads every engine at once"),
        (
            expression('enginescope_process_up{engine="$engine"} / enginescope_engine_up'),
            "reads something of every engine",
        ),
        (expression('sum(enginescope_steps_total{engine="$engine"})'), "reads enginescope_steps_total without a rate"),
        (expression('rate(enginescope_steps_total{engine="$engine"}[5m])'), "a window that does not follow"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named(change: Callable[[Json, Json], object], sentence: str) -> None:
    assert any(sentence in problem for problem in planted(change)), planted(change)


@pytest.mark.skipif("promtool" in toolchain.missing(), reason="needs promtool (make install)")
def test_prometheus_itself_refuses_what_is_no_promql() -> None:
    problems = planted(expression('sum(rate(enginescope_steps_total{engine="$engine"}[$__rate_interval])'))
    assert [problem.startswith("enginescope-sockets: panel 103, query A is no PromQL: ") for problem in problems] == [
        True
    ]
    assert "unclosed left parenthesis" in problems[0]


def test_without_promtool_the_rest_is_still_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise toolchain.ToolMissingError("none")

    monkeypatch.setattr("dashboards.lint.find", missing)
    assert parse_problems(BUILT) == []
    assert planted(lambda _, panel: panel.update(title=""))


def test_variables_are_found_and_filled() -> None:
    assert variables.used("$a ${b} ${c:queryparam} ${d.raw} 5$") == {"a", "b", "c", "d"}
    assert variables.fill("$a ${b:x} $c", {"a": "1", "b": "2"}) == "1 2 $c"
