"""Dashboards as the JSON that Grafana 11 and later provisions (schema version 39 and up; checked by ``lint``).

Data sources and the engine are variables, so that no file names what only one installation has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from alerts.build import RUNBOOK_BASE
from alerts.catalogue import alert_name, folders
from dashboards.model import Cell, Dashboard, Kind, Panel, Query, Row, layout, row_id
from dashboards.places import failures_at
from dashboards.promql import ENGINE, series
from telemetry import catalog

SCHEMA_VERSION: Final = 39
TAG: Final = "enginescope"
Json = dict[str, Any]

PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
JAEGER: Final = {"type": "jaeger", "uid": "${traces}"}
_GRAFANA: Final = {"type": "grafana", "uid": "-- Grafana --"}
_UNITS: Final = {"bool": "none", "string": "string"}


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
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": _place(cell), "panels": []}


def _place(cell: Cell) -> Json:
    return {"x": cell.x, "y": cell.y, "w": cell.width, "h": cell.height}


# --- around the panels


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


# --- one panel


def panel_json(panel: Panel, cell: Cell) -> Json:
    """One panel in its place."""
    rendered: Json = {
        "id": panel.id,
        "type": panel.kind.value,
        "title": panel.title,
        "description": _description(panel),
        "gridPos": _place(cell),
        "links": _runbooks(panel),
    }
    if panel.kind is Kind.TEXT:
        return rendered | {"options": {"mode": "markdown", "content": panel.text}}
    rendered |= {
        "datasource": _source(panel.queries[0]),
        "targets": [_target(panel, number, query) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind](panel),
    }
    if panel.kind is Kind.TABLE:
        rendered["transformations"] = _columns(panel)
    return rendered


def _description(panel: Panel) -> str:
    return f"{panel.says}\n\nNeeds {panel.hardware}." if panel.hardware else panel.says


def _runbooks(panel: Panel) -> list[Json]:
    written = {folder.name for folder in folders()}
    return [
        {
            "title": f"What to do about {alert_name(failure)}",
            "url": f"{RUNBOOK_BASE}/{failure}/runbook.md",
            "targetBlank": True,
        }
        for failure in failures_at(panel.id)
        if failure in written
    ]


def _source(query: Query) -> Json:
    return JAEGER if query.jaeger else PROMETHEUS


def ref_id(number: int) -> str:
    """Grafana's name of a panel's query: A, B, C."""
    return chr(ord("A") + number)


def _target(panel: Panel, number: int, query: Query) -> Json:
    target: Json = {"refId": ref_id(number), "datasource": _source(query)}
    if query.jaeger:
        return target | query.jaeger
    table = panel.kind is Kind.TABLE
    return target | {
        "expr": query.expression,
        "legendFormat": query.legend or "__auto",
        "exemplar": query.exemplars,
        "instant": table,
        "range": not table,
        "format": {Kind.TABLE: "table", Kind.HEATMAP: "heatmap"}.get(panel.kind, "time_series"),
        "editorMode": "code",
    }


def _field(panel: Panel) -> Json:
    field: Json = {
        "unit": _UNITS.get(panel.unit, panel.unit),
        "color": {"mode": "thresholds" if panel.kind in (Kind.STAT, Kind.STATES) else "palette-classic"},
        "thresholds": _thresholds(panel),
        "mappings": _mappings(panel),
    }
    if panel.kind is not Kind.TABLE:
        field["min"] = 0
    if panel.top is not None:
        field["max"] = panel.top
    custom = _CUSTOM.get(panel.kind)
    if custom is not None:
        field["custom"] = custom(panel)
    return field


def _thresholds(panel: Panel) -> Json:
    base = "text" if panel.kind is Kind.STAT and not panel.limits else "green"
    steps: list[Json] = [{"color": base, "value": None}]
    return {
        "mode": "absolute",
        "steps": steps + [{"color": limit.colour, "value": limit.value} for limit in panel.limits],
    }


def _mappings(panel: Panel) -> list[Json]:
    if not panel.words:
        return []
    options = {
        str(value): {"text": word.text, "color": word.colour, "index": index}
        for index, (value, word) in enumerate(panel.words.items())
    }
    return [{"type": "value", "options": options}]


def _overrides(panel: Panel) -> list[Json]:
    if panel.id == _SLOW_TRACES:
        return [_trace_link()]
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": ref_id(number)},
            "properties": [
                {"id": "unit", "value": query.unit},
                {"id": "custom.axisPlacement", "value": "right"},
                {"id": "max"},
            ],
        }
        for number, query in enumerate(panel.queries)
        if query.unit
    ]


_SLOW_TRACES: Final = 307


def _trace_link() -> Json:
    """The trace id of Jaeger's search results chooses the trace that is shown beside them."""
    link = {
        "title": "Show its stages",
        "url": "/d/enginescope-traces?var-trace=${__value.raw}&${engine:queryparam}&${__url_time_range}",
        "targetBlank": False,
    }
    return {
        "matcher": {"id": "byRegexp", "options": "/^trace.?id$/i"},
        "properties": [{"id": "links", "value": [link]}],
    }


def _lines_custom(panel: Panel) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if panel.limits else "off"},
        "scaleDistribution": {"type": "linear"},
        "axisPlacement": "auto",
        "axisLabel": "",
    }


_CUSTOM: Final[dict[Kind, Callable[[Panel], Json]]] = {
    Kind.LINES: _lines_custom,
    Kind.STATES: lambda _: {"fillOpacity": 75, "lineWidth": 0},
    Kind.TABLE: lambda _: {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
    Kind.HEATMAP: lambda _: {"scaleDistribution": {"type": "linear"}},
}


def _stat_options(panel: Panel) -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if panel.words or panel.limits else "value",
        "graphMode": "none" if panel.words else "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value" if len(panel.queries) == 1 else "value_and_name",
        "wideLayout": True,
    }


def _lines_options(_panel: Panel) -> Json:
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _heatmap_options(panel: Panel) -> Json:
    return {
        "calculate": False,
        "yAxis": {"axisPlacement": "left", "unit": panel.unit, "reverse": False},
        "rowsFrame": {"layout": "auto"},
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(31,96,196,0.9)"},
    }


_OPTIONS: Final[dict[Kind, Callable[[Panel], Json]]] = {
    Kind.STAT: _stat_options,
    Kind.LINES: _lines_options,
    Kind.HEATMAP: _heatmap_options,
    Kind.STATES: lambda _: {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    Kind.TABLE: lambda _: {"showHeader": True, "cellHeight": "sm"},
    Kind.TRACES: lambda _: {},
}


def _columns(panel: Panel) -> list[Json]:
    """Several queries become one table; columns that say nothing go."""
    merge: list[Json] = [{"id": "merge", "options": {}}] if len(panel.queries) > 1 else []
    if not panel.hidden:
        return merge
    hidden = dict.fromkeys(panel.hidden, True)
    return [*merge, {"id": "organize", "options": {"excludeByName": hidden, "indexByName": {}, "renameByName": {}}}]
