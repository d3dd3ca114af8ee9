"""The two panels that Grafana fills from Jaeger, filled from exemplars and from whoever has the spans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any, Final
from urllib.parse import urlsplit

from dashboards.preview.units import write
from dashboards.prometheus import Exemplar
from enginescope.probe import ProbeError, get

_COLOURS: Final = {"api": "#3274d9", "core": "#e0752d"}
_ROW: Final = 30
_LEFT: Final = 190
_SLOWEST: Final = 12
Span = dict[str, Any]


def slowest(exemplars: Sequence[Exemplar]) -> list[Exemplar]:
    """The longest requests that the buckets remember, each once."""
    by_trace = {one.trace_id: one for one in sorted(exemplars, key=lambda one: one.value)}
    return sorted(by_trace.values(), key=lambda one: -one.value)[:_SLOWEST]


def spans_of(url: str | None, trace_id: str) -> list[Span]:
    """The spans of a trace at an OTLP sink of ours; none when it is not there."""
    parts = urlsplit(url or "")
    if not parts.hostname or not parts.port:
        return []
    try:
        found = json.loads(get(parts.port, f"/api/traces/{trace_id}", parts.hostname))
    except (ProbeError, ValueError):
        return []
    return found if isinstance(found, list) else []


def slow_table(exemplars: Sequence[Exemplar], width: int, height: int) -> str:
    """Trace ids and durations."""
    rows = "".join(
        f"<tr><td class='id'>{escape(one.trace_id)}</td><td>{write(one.value, 's')}</td></tr>" for one in exemplars
    )
    return f'<div class="table" style="width:{width}px;height:{height}px"><table>{rows}</table></div>'


def waterfall(spans: Sequence[Span], width: int, height: int) -> str:
    """One trace: a bar for each span, with its duration."""
    if not spans:
        return f'<svg width="{width}" height="{height}"><text x="20" y="40">no trace at hand</text></svg>'
    begin = min(int(span["start_ns"]) for span in spans)
    length = max(max(int(span["end_ns"]) for span in spans) - begin, 1)
    room = width - _LEFT - 90
    parts = [f'<text x="8" y="16" font-size="11" fill="#495057">trace {escape(spans[0]["trace_id"])}</text>']
    for number, span in enumerate(spans):
        y = 26 + number * _ROW
        start, end = int(span["start_ns"]) - begin, int(span["end_ns"]) - begin
        x, wide = _LEFT + start / length * room, max((end - start) / length * room, 1.5)
        colour = "#6c757d" if span["parent_span_id"] == "" or number == 0 else _COLOURS[_process(span)]
        parts.append(
            f'<text x="{8 if number == 0 else 20}" y="{y + 15}" font-size="11" fill="#24292e">'
            f"{escape(span['name'])}</text>"
            f'<rect x="{x:.1f}" y="{y + 4}" width="{wide:.1f}" height="16" rx="2" fill="{colour}" fill-opacity="0.8"/>'
            f'<text x="{x + wide + 5:.1f}" y="{y + 16}" font-size="10" fill="#6c757d">'
            f"{write((end - start) / 1e9, 's')}</text>"
        )
    facts = spans[0]["attributes"]
    told = [f"{key} = {facts[key]}" for key in sorted(facts) if key.startswith(("enginescope.", "gen_ai.usage"))]
    y = 26 + len(spans) * _ROW + 14
    parts += [
        f'<text x="8" y="{y + line * 14}" font-size="10" fill="#6c757d">{escape(text)}</text>'
        for line, text in enumerate(told)
        if y + line * 14 < height
    ]
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def _process(span: Span) -> str:
    return "api" if span["name"] in ("engine.receive", "engine.output_socket.receive") else "core"
