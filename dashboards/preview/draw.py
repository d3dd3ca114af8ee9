"""One panel as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Final

from dashboards.model import Kind, Panel
from dashboards.preview.answers import Answer, Moment
from dashboards.preview.blocks import heatmap, states, table
from dashboards.preview.lines import lines
from dashboards.preview.plot import CHARACTER, COLOURS, across, label, svg
from dashboards.preview.units import write
from dashboards.prometheus import Line


def draw(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    """The panel's body; its title is the page's."""
    if not any(answer.lines for answer in answers):
        return _empty(panel, width, height)
    return _DRAWERS[panel.kind](panel, answers, moment, width, height)


def _empty(panel: Panel, width: int, height: int) -> str:
    reason = panel.hardware and f"needs {panel.hardware}"
    reason = reason or next((query.optional for query in panel.queries if query.optional), "") or "no data"
    rows = wrap(reason, max(int(width / CHARACTER) - 6, 10))
    first = height / 2 - 7 * (len(rows) - 1)
    return svg(width, height, [label(width / 2, first + 14 * row, text, "middle", 11) for row, text in enumerate(rows)])


def _stat(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    line = next(line for answer in answers for line in answer.lines)
    worst = min if panel.words else max
    value = worst(line.points[-1][1] for answer in answers for line in answer.lines)
    word = panel.words.get(round(value))
    text = word.text if word else write(value, panel.unit)
    colour = COLOURS[word.colour] if word else _by_limit(panel, value)
    filled = bool(word or panel.limits)
    parts = [f'<rect width="{width}" height="{height}" rx="3" fill="{colour}"/>'] if filled else []
    if not filled:
        parts.append(_sparkline(line, moment, width, height))
    size = min(30, width / max(len(text) * 0.62, 1))
    parts.append(
        label(width / 2, height / 2 + size / 3, text, "middle", size, "#ffffff" if filled else COLOURS["text"])
    )
    return svg(width, height, parts)


def _by_limit(panel: Panel, value: float) -> str:
    reached = [limit.colour for limit in panel.limits if value >= limit.value]
    return COLOURS[reached[-1] if reached else "green"]


def _sparkline(line: Line, moment: Moment, width: int, height: int) -> str:
    top = max(value for _, value in line.points) or 1
    points = [(across(moment, at, 0, width), height - value / top * height * 0.45) for at, value in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polygon points="{points[0][0]:.1f},{height} {path} {points[-1][0]:.1f},{height}" fill="#3274d9" '
        f'fill-opacity="0.13"/><polyline points="{path}" fill="none" stroke="#3274d9" stroke-opacity="0.6"/>'
    )


Drawer = Callable[[Panel, Sequence[Answer], Moment, int, int], str]
_DRAWERS: Final[dict[Kind, Drawer]] = {
    Kind.STAT: _stat,
    Kind.LINES: lines,
    Kind.HEATMAP: heatmap,
    Kind.STATES: states,
    Kind.TABLE: table,
}
