"""One dashboard as a page of HTML that needs nothing from anywhere: headlines, panels, and the label of a preview."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from dashboards.model import Cell, Dashboard, Kind, Panel, Row, layout
from dashboards.preview.answers import Answer, Moment, ask
from dashboards.preview.draw import draw
from dashboards.preview.waterfall import slow_table, slowest, spans_of, waterfall
from dashboards.prometheus import Exemplar, Server
from telemetry import catalog

COLUMN: Final = 54
ROW: Final = 26
WIDTH: Final = 24 * COLUMN + 16
_TITLE: Final = 22
_STYLE: Final = """
* { box-sizing: border-box; }
body { margin: 0; background: #f4f5f5; color: #24292e; font: 11px "DejaVu Sans", Arial, sans-serif; }
header { padding: 10px 14px 6px; font-size: 17px; font-weight: bold; }
header small { display: block; font-size: 11px; font-weight: normal; color: #57606a; margin-top: 3px; }
main { position: relative; margin: 0 8px; }
section { position: absolute; background: #fff; border: 1px solid #dfe2e5; border-radius: 3px; overflow: hidden; }
section h2 { margin: 0; padding: 5px 8px 0; font-size: 11px; height: 22px; white-space: nowrap; overflow: hidden; }
h1 { position: absolute; margin: 0; padding: 6px 4px 0; font-size: 13px; }
.table { overflow: hidden; padding: 2px 8px; }
table { border-collapse: collapse; width: 100%; font-size: 10px; }
td { padding: 2px 6px 2px 0; border-bottom: 1px solid #eaecef; white-space: nowrap; }
td:last-child { text-align: right; }
td.id { font-family: "DejaVu Sans Mono", monospace; font-size: 9px; }
svg { display: block; font-family: "DejaVu Sans", Arial, sans-serif; }
"""


def page(server: Server, dashboard: Dashboard, moment: Moment, traces: str | None) -> tuple[str, int]:
    """The page, and its height in pixels.

    Args:
        server: who answers the queries.
        dashboard: what to draw.
        moment: the time that it shows.
        traces: address of an OTLP sink, for the trace in the last dashboard.

    Raises:
        ProbeError: Prometheus does not answer.
    """
    answers = ask(server, dashboard, moment)
    cells = [(item, cell) for item, cell in layout(dashboard) if not (isinstance(item, Panel) and item.text)]
    body = "".join(_item(item, cell, answers, moment, traces) for item, cell in cells)
    depth = max(cell.y + cell.height for _, cell in cells) * ROW
    return (
        "<!DOCTYPE html>\n"
        f"<html lang='en'><head><meta charset='utf-8'><title>{escape(dashboard.title)}</title>"
        f"<style>{_STYLE}</style></head><body>{_head(dashboard, moment, server.engine)}"
        f"<main style='height:{depth}px'>{body}</main></body></html>\n"
    ), depth + 64


def _head(dashboard: Dashboard, moment: Moment, engine: str) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(moment.start))
    first, last = (time.strftime("%H:%M:%S", time.gmtime(at)) for at in (moment.start, moment.end))
    return (
        f"<header>{escape(dashboard.title)}<small>Preview, not Grafana: the same panels, queries and grid, drawn by "
        f"enginescope from live data. Engine {escape(engine)}, {day}, {first} to {last} UTC. Red marks: an alert began "
        "to fire.</small></header>"
    )


def _item(
    item: Row | Panel, cell: Cell, answers: Mapping[int, Sequence[Answer]], moment: Moment, traces: str | None
) -> str:
    left, top = cell.x * COLUMN, cell.y * ROW
    if isinstance(item, Row):
        return f"<h1 style='left:{left}px;top:{top}px'>{escape(item.title)}</h1>"
    width, height = cell.width * COLUMN - 6, cell.height * ROW - 6
    inside = _inside(item, answers, moment, traces, width - 2, height - _TITLE - 4)
    return (
        f"<section style='left:{left}px;top:{top}px;width:{width}px;height:{height}px'>"
        f"<h2>{escape(item.title)}</h2>{inside}</section>"
    )


def _inside(
    panel: Panel,
    answers: Mapping[int, Sequence[Answer]],
    moment: Moment,
    traces: str | None,
    width: int,
    height: int,
) -> str:
    if not any(query.jaeger for query in panel.queries):
        return draw(panel, answers[panel.id], moment, width, height)
    # Grafana asks Jaeger here. The exemplars are the same traces, and the sink has the same spans.
    exemplars = slowest(list(_exemplars(answers)))
    if panel.kind is Kind.TABLE:
        return slow_table(exemplars, width, height)
    since = min((at for _, at in moment.alerts), default=moment.start)
    exemplars.sort(key=lambda one: one.moment < since)  # those that an alert was about come first
    spans = next((found for one in exemplars if (found := spans_of(traces, one.trace_id))), [])
    return waterfall(spans, width, height)


def _exemplars(answers: Mapping[int, Sequence[Answer]]) -> Iterator[Exemplar]:
    for panel_answers in answers.values():
        for answer in panel_answers:
            if catalog.REQUEST_DURATION.name in answer.query.expression:
                yield from answer.exemplars
