"""From the catalogue and the alert rules to Grafana's JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.catalogue import BUILT as RULES
from dashboards import build, limits, promql
from dashboards.model import Panel, layout
from dashboards.places import INTERNALS, OVERVIEW, SOCKETS, TRACES
from telemetry import catalog
from telemetry.stages import STAGES

PANELS = {panel.id: panel for dashboard in build.dashboards() for panel in dashboard.panels}


def loaded(uid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((build.BUILT / f"{uid}.json").read_text())
    return found


def drawn_limits(panel: Panel) -> set[float]:
    return {limit.value for limit in panel.limits}


def test_the_built_files_are_current() -> None:
    assert build.stale(build.BUILT) == []


def test_check_tells_an_old_file_and_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.write(tmp_path)
    assert build.stale(tmp_path) == []
    (tmp_path / f"{SOCKETS}.json").write_text("{}")
    (tmp_path / "old.json").write_text("{}")
    assert build.main(["--check", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / SOCKETS}.json is out of date" in said
    assert f"{tmp_path / 'old.json'} is out of date" in said


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert build.main(["--output", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"cannot write {tmp_path / 'file'}: File exists\n"


def test_every_alert_leads_to_a_panel_that_is_there_and_back_to_its_runbook() -> None:
    rules = yaml.safe_load(RULES.read_text())
    alerting = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerting
    for rule in alerting:
        link = re.fullmatch(
            r"http://127\.0\.0\.1:3000/d/([\w-]+)/[\w-]+\?viewPanel=(\d+)"
            r"\{\{ with \$labels\.engine \}\}&var-engine=\{\{ \. \| urlquery \}\}\{\{ end \}\}",
            rule["annotations"]["dashboard_url"],
        )
        assert link, rule["alert"]
        dashboard = loaded(link[1])
        panel = next(panel for panel in dashboard["panels"] if panel["id"] == int(link[2]))
        assert panel["type"] != "row"
        assert "engine" in {variable["name"] for variable in dashboard["templating"]["list"]}
        assert rule["annotations"]["runbook_url"] in {one["url"] for one in panel["links"]}, rule["alert"]


def test_panel_ids_are_in_the_hundred_of_their_dashboard() -> None:
    hundreds = {OVERVIEW: 0, SOCKETS: 1, INTERNALS: 2, TRACES: 3}
    for dashboard in build.dashboards():
        for panel in loaded(dashboard.uid)["panels"]:
            assert panel["id"] // 100 == hundreds[dashboard.uid]


def test_the_six_stages_are_one_line_in_their_order() -> None:
    overview = next(dashboard for dashboard in build.dashboards() if dashboard.uid == OVERVIEW)
    cells = {item.title: cell for item, cell in layout(overview) if isinstance(item, Panel)}
    stages = [cells[f"{number}. {stage.name}"] for number, stage in enumerate(STAGES, 1)]
    assert len({cell.y for cell in stages}) == 1
    assert [cell.x for cell in stages] == [0, 4, 8, 12, 16, 20]


def test_limits_are_those_of_the_rules() -> None:
    assert drawn_limits(PANELS[103]) == {0.8}
    assert drawn_limits(PANELS[122]) == {0.85}
    assert drawn_limits(PANELS[123]) == {20}
    assert drawn_limits(PANELS[222]) == {0.9, 1.0}
    assert drawn_limits(PANELS[204]) == {3}
    assert drawn_limits(PANELS[113]) == {1, 3, 5}
    assert drawn_limits(PANELS[124]) == {1}  # and not the 0.25 that is a factor
    assert drawn_limits(PANELS[126]) == {5000}
    assert drawn_limits(PANELS[127]) == drawn_limits(PANELS[128]) == {0.9, 1}
    assert drawn_limits(PANELS[131]) == {0.02}
    assert drawn_limits(PANELS[135]) == {2e6}
    assert "somaxconn below 1024" in PANELS[106].says


def test_a_limit_that_no_rule_has_stops_the_build() -> None:
    with pytest.raises(promql.DashboardError, match="compares nonsense with no number"):
        limits.limit("tcp_backlog_full", "nonsense")
    with pytest.raises(promql.DashboardError, match="the alert of no_such_failure compares"):
        limits.limit("no_such_failure", "up")


def test_exemplars_are_asked_of_histograms_that_carry_them() -> None:
    asked = {query.expression for panel in PANELS.values() for query in panel.queries if query.exemplars}
    assert asked
    assert all("_bucket{" in expression for expression in asked)


def test_selectors_name_the_engine_and_only_labels_there_are() -> None:
    assert promql.series(catalog.ENGINE_UP) == 'enginescope_engine_up{engine="$engine"}'
    assert (
        promql.rate(catalog.REQUESTS, outcome="~ok|shed")
        == 'rate(enginescope_requests_total{engine="$engine",outcome=~"ok|shed"}[$__rate_interval])'
    )
    with pytest.raises(promql.DashboardError, match="enginescope_engine_up has no label port"):
        promql.series(catalog.ENGINE_UP, port="1")
    with pytest.raises(promql.DashboardError, match="is no counter"):
        promql.rate(catalog.ENGINE_UP)
    with pytest.raises(promql.DashboardError, match="is no histogram"):
        promql.heat(catalog.ENGINE_UP)
    with pytest.raises(promql.DashboardError, match="rules of engine_down do not record a:b:c"):
        promql.recorded("engine_down", "a:b:c")


@pytest.mark.parametrize("uid", [OVERVIEW, SOCKETS, INTERNALS, TRACES])
def test_each_dashboard_has_its_variables_annotations_and_links(uid: str) -> None:
    dashboard = loaded(uid)
    kinds = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert kinds.items() >= {"datasource": "datasource", "engine": "query"}.items()
    assert [one["name"] for one in dashboard["annotations"]["list"][1:]] == ["Alerts", "Versions", "Starts"]
    leads_to = {link["type"]: link for link in dashboard["links"]}
    assert leads_to["dashboards"]["tags"] == dashboard["tags"] == ["enginescope"]
    assert leads_to["dashboards"]["includeVars"]
    assert leads_to["dashboards"]["keepTime"]
    assert leads_to["link"]["title"] == "Runbooks"
    assert not any("current" in one for one in dashboard["templating"]["list"] if one["type"] == "datasource")


def test_jaeger_is_asked_as_its_data_source_documents() -> None:
    panels = {panel["id"]: panel for panel in loaded(TRACES)["panels"]}
    (slow,), (trace,) = panels[307]["targets"], panels[308]["targets"]
    assert slow["datasource"] == trace["datasource"] == {"type": "jaeger", "uid": "${traces}"}
    assert slow.keys() - {"refId", "datasource"} <= {
        "queryType",
        "service",
        "operation",
        "tags",
        "minDuration",
        "limit",
    }
    assert (slow["queryType"], slow["minDuration"]) == ("search", "$slower_than")
    assert trace.keys() == {"refId", "datasource", "query"}
    assert panels[308]["type"] == "traces"
    (override,) = panels[307]["fieldConfig"]["overrides"]
    (links,) = override["properties"]
    assert links["value"][0]["url"].startswith(f"/d/{TRACES}?var-trace=${{__value.raw}}&")


def test_a_limit_may_be_a_product_and_not_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"burn": "a:b:c > 14.4 * 0.01 and d:e:f > 1 and d:e:f > 0.25 * g:h:i and j:k:l < 2e6"}
    monkeypatch.setattr(limits, "_expressions", lambda: rules)
    assert limits.limit("burn", "a:b:c") == pytest.approx(0.144)
    assert limits.limit("burn", "d:e:f") == 1
    assert limits.limit("burn", "j:k:l") == 2e6
