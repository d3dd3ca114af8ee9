"""The table of alerts: made from the folders and the drills, and kept current."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alerts import table
from alerts.catalogue import ROOT, Alert, AlertError, alerts
from enginescope.drills import saved
from enginescope.drills.result import DrillResult

DRILLED: table.Drilled = {
    "date": "2026-01-02",
    "time_scale": 0.05,
    "seconds_to_evidence": 0.5,
    "seconds_to_page": 1.94,
    "seconds_to_resolved": 13.0,
}


def test_the_shipped_documents_are_current() -> None:
    assert {path.read_text() == text for path, text in table.filled(alerts()).items()} == {True}


def test_every_alert_has_a_row_with_a_link_that_leads_somewhere() -> None:
    rows = table.render(alerts(), {}, table.PAGE.parent).splitlines()[2:]
    assert len(rows) == len(alerts())
    for row, alert in zip(rows, alerts(), strict=True):
        assert row.startswith(f"| [{alert.alert}](../alerts/{alert.name}/runbook.md) | ")
        assert row.count("|") == 6
    assert "](alerts/engine_down/runbook.md)" in table.render(alerts(), {}, table.README.parent)


def test_a_row_says_who_hears_it_what_holds_it_back_and_how_long_the_drill_took() -> None:
    text = table.render(alerts(), {"fd_growth": DRILLED, "fd_exhausted": {**DRILLED, "time_scale": 1}}, ROOT)
    rows = {line.partition("]")[0]: line for line in text.splitlines()}
    growth, exhausted = rows["| [FDGrowth"], rows["| [FDExhausted"]
    assert growth.endswith("| warning (ticket) | EngineDown, FDExhausted | 1.9 (2026-01-02, rules 20 times faster) |")
    assert exhausted.endswith("| critical (page) | EngineDown | 1.9 (2026-01-02) |")


def test_the_meaning_is_the_folders_own_or_the_runbooks_first_sentence(tmp_path: Path) -> None:
    alert = Alert("x", "X", "critical", tmp_path, ())
    with pytest.raises(AlertError, match="has no sentence under Meaning"):
        table.meaning(alert)
    (tmp_path / "runbook.md").write_text("# X\n\n## Meaning\n\nIt is\nbroken, e.g. badly. More.\n\nAnd more.\n")
    assert table.meaning(alert) == "It is broken, e.g. badly."
    assert table.meaning(Alert("x", "X", "critical", tmp_path, (), {}, "Own words.")) == "Own words."


def test_check_tells_an_old_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"text\n{table._BEGIN}\n{table._END}\nmore\n")
    assert table.main(["--check", str(document)]) == 1
    assert capsys.readouterr().err.endswith("is out of date: run `python -m alerts.table` and commit the result\n")
    assert table.main([str(document)]) == 0
    assert table.main(["--check", str(document)]) == 0
    document.write_text("no markers\n")
    assert table.main(["--check", str(document)]) == 1
    assert "must hold" in capsys.readouterr().err


def test_good_drills_are_noted_beside_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "drills.json"
    saved.save([DrillResult("b", True, 0.1, 0.2, 0.3), DrillResult("bad", True, reason="x")], 0.05, path)
    saved.save([DrillResult("a", True, 1.0, 2.0, 3.0), DrillResult("c", skipped="needs a GPU")], 1.0, path)
    noted = json.loads(path.read_text())
    assert list(noted) == ["a", "b"]
    assert noted["b"]["time_scale"] == 0.05
    assert noted["a"] | {"date": ""} == {
        "date": "",
        "time_scale": 1.0,
        "seconds_to_evidence": 1.0,
        "seconds_to_page": 2.0,
        "seconds_to_resolved": 3.0,
    }
    path.write_text("{")
    with pytest.raises(AlertError, match="cannot read"):
        table.last_drills(path)
