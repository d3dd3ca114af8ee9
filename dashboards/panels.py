"""One panel as Grafana's JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from alerts.build import RUNBOOK_BASE
from alerts.catalogue import alert_name, folders
from dashboards.model import Cell, Kind, Panel, Query
from dashboards.places import failures_at

Json = dict[str, Any]

PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
JAEGER: Final = {"type": "jaeger", "uid": "${traces}"}
_UNITS: Final = {"bool": "none", "string": "string"}


def place_json(cell: Cell) -> Json:
    """Where it stands."""
    return {"x": cell.x, "y": cell.y, "w": cell.width, "h": cell.height}


def panel_json(panel: Panel, cell: Cell) -> Json:
    """One panel in its place."""
    rendered: Json = {
        "id": panel.id,
        "type": panel.kind.value,
        "title": panel.title,
        "description": _description(panel),
        "gridPos": place_json(cell),
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
