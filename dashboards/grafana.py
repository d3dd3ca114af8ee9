"""Dashboards as the JSON that Grafana 11 and later provisions (schema version 39 and up; checked by ``lint``).

Data sources and the engine are variables, so that no file names what only one installation has.
"""

from __future__ import annotations

import json
from typing import Final

from alerts.build import RUNBOOK_BASE
from dashboards.model import Cell, Dashboard, Row, layout, row_id
from dashboards.panels import PROMETHEUS, Json, panel_json, place_json
from dashboards.promql import ENGINE, series
from telemetry import catalog

SCHEMA_VERSION: Final = 39
TAG: Final = "enginescope"

_GRAFANA: Final = {"type": "grafana", "uid": "-- Grafana --"}


def render(dashboard: Dashboard) -> str:
    """The text of its file."""
    return json.dumps(to_json(dashboard), indent=2, ensure_ascii=False) + "\n"


def to_json(dashboard: Dashboard) -> Json:
    """The whole dashboard."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m"]},
        "refresh": "10s",
        "timezone": "",
        "links": _dashboard_links(),
        "annotations": {"list": _annotations()},
        "templating": {"list": _variables(dashboard)},
        "panels": _panels(dashboard),
    }


def _panels(dashboard: Dashboard) -> list[Json]:
    panels = []
    for item, cell in layout(dashboard):
        if isinstance(item, Row):
            number = dashboard.rows.index(item)
            panels.append(_headline(row_id(dashboard, number), item.title, cell))
        else:
            panels.append(panel_json(item, cell))
    return panels


def _headline(number: int, title: str, cell: Cell) -> Json:
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place_json(cell), "panels": []}


def _dashboard_links() -> list[Json]:
    common: Json = {"icon": "external link", "targetBlank": False, "tooltip": "", "url": "", "tags": []}
    return [
        common
        | {
            "type": "dashboards",
            "title": "enginescope",
            "tags": [TAG],
            "asDropdown": False,
            "includeVars": True,
            "keepTime": True,
        },
        common
        | {
            "type": "link",
            "title": "Runbooks",
            "url": RUNBOOK_BASE.replace("/blob/", "/tree/"),
            "targetBlank": True,
            "icon": "doc",
        },
    ]


def _annotations() -> list[Json]:
    running = series(catalog.BUILD_INFO)
    new_version = f"group by (version) ({running}) unless group by (version) ({running} offset 1m)"
    return [
        {
            "name": "Annotations & Alerts",
            "type": "dashboard",
            "builtIn": 1,
            "datasource": _GRAFANA,
            "enable": True,
            "hide": True,
            "iconColor": "rgba(0, 211, 255, 1)",
        },
        _annotation(
            "Alerts",
            f'ALERTS{{alertstate="firing",alertname!="Watchdog",{ENGINE}}}',
            "{{alertname}}",
            "{{severity}} {{role}} {{port}} {{process}}",
            "red",
        ),
        _annotation("Versions", new_version, "version {{version}}", "", "blue"),
        _annotation(
            "Starts",
            f"1000 * max by (process) ({series(catalog.PROCESS_START)})",
            "{{process}} started",
            "",
            "yellow",
        )
        | {"useValueForTime": "on"},
    ]


def _annotation(name: str, expression: str, title: str, text: str, colour: str) -> Json:
    return {
        "name": name,
        "datasource": PROMETHEUS,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expression,
        "step": "10s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "",
    }


def _variables(dashboard: Dashboard) -> list[Json]:
    engines = 'label_values(up{job="enginescope"}, engine)'
    found: list[Json] = [
        _data_source("datasource", "Prometheus", "prometheus"),
        {
            "name": "engine",
            "label": "Engine",
            "type": "query",
            "datasource": PROMETHEUS,
            "definition": engines,
            "query": {"query": engines, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": 1},
            "refresh": 2,
            "sort": 1,
            "multi": False,
            "includeAll": False,
            "hide": 0,
            "regex": "",
        },
    ]
    if dashboard.traces:
        found += [
            _data_source("traces", "Jaeger", "jaeger"),
            _text_box("service", "Service", "enginescope-engine"),
            _text_box("slower_than", "Slower than", "1s"),
            _text_box("trace", "Trace id", ""),
        ]
    return found


def _data_source(name: str, label: str, kind: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "datasource",
        "query": kind,
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "regex": "",
    }


def _text_box(name: str, label: str, value: str) -> Json:
    chosen = {"text": value, "value": value, "selected": True}
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "current": chosen,
        "options": [chosen],
        "hide": 0,
    }
