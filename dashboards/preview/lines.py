"""Lines over time, with limits, exemplars, a second axis and a legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from dashboards.model import Panel
from dashboards.preview.answers import Answer, Moment
from dashboards.preview.plot import CHARACTER, COLOURS, PALETTE, Plot, label, svg
from dashboards.preview.units import ticks, write
from dashboards.prometheus import Line

_LEGEND_LINE: Final = 14
_MOST_LEGENDS: Final = 9
_MOST_EXEMPLARS: Final = 60
"""Of the slowest; more would hide the lines."""


def lines(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    """The panel as a picture of this size."""
    series = [(answer, name, line) for answer in answers for name, line in answer.named()]
    legends = [(name, write(line.points[-1][1], answer.query.unit or panel.unit)) for answer, name, line in series]
    rows = list(_legend_rows(legends, width))
    right_unit = next((answer.query.unit for answer, _, _ in series if answer.query.unit), None)
    plot = Plot(moment, width, height - len(rows) * _LEGEND_LINE, right_unit is not None)
    main = [(name, line) for answer, name, line in series if not answer.query.unit]
    stacks = list(_stacked([line for _, line in main])) if panel.stacked else [line for _, line in main]
    drawn_limits = [limit.value for limit in panel.limits]
    values = [value for line in stacks for _, value in line.points]
    scale = ticks(
        panel.top if panel.top is not None else max([*values, *_near(drawn_limits, values)], default=0), panel.unit
    )
    parts = [*plot.axis(scale, panel.unit), *plot.times(3), *plot.alerts()]
    for limit in panel.limits:
        if limit.value <= scale[-1]:
            y = plot.y(limit.value, scale[-1])
            parts.append(
                f'<line x1="{plot.left}" x2="{plot.right}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{COLOURS[limit.colour]}" stroke-dasharray="6 4"/>'
            )
    parts += _strokes(plot, stacks, scale[-1], 0, panel.stacked)
    if right_unit is not None:
        right = [line for answer, _, line in series if answer.query.unit]
        right_scale = ticks(max(value for line in right for _, value in line.points), right_unit)
        parts += [*plot.axis(right_scale, right_unit, right=True), *_strokes(plot, right, right_scale[-1], len(main))]
    parts += _exemplars(plot, answers, scale[-1])
    parts += _legends(rows, height - len(rows) * _LEGEND_LINE)
    return svg(width, height, parts)


def _near(limits: Sequence[float], values: Sequence[float]) -> list[float]:
    """Limits that the values have come so near to that both fit into one picture."""
    highest = max(values, default=0)
    return [limit for limit in limits if highest >= limit / 5]


def _stacked(lines: Sequence[Line]) -> Iterable[Line]:
    """Each line on top of those before it."""
    heights: dict[float, float] = {}
    for line in lines:
        for at, value in line.points:
            heights[at] = heights.get(at, 0) + value
        yield Line(line.labels, [(at, heights[at]) for at, _ in line.points])


def _strokes(plot: Plot, lines: Sequence[Line], top: float, first: int, filled: bool = False) -> list[str]:
    parts = []
    for number, line in reversed(list(enumerate(lines, first))):
        colour = PALETTE[number % len(PALETTE)]
        for piece in _pieces(line):
            path = " ".join(f"{plot.x(at):.1f},{plot.y(value, top):.1f}" for at, value in piece)
            if filled:
                first_x, last_x = plot.x(piece[0][0]), plot.x(piece[-1][0])
                parts.append(
                    f'<polygon points="{first_x:.1f},{plot.bottom} {path} {last_x:.1f},{plot.bottom}" fill="#fff"/>'
                    f'<polygon points="{first_x:.1f},{plot.bottom} {path} {last_x:.1f},{plot.bottom}" fill="{colour}" '
                    'fill-opacity="0.35"/>'
                )
            dash = ' stroke-dasharray="4 2"' if first else ""
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"{dash}/>')
    return parts


def _pieces(line: Line) -> list[list[tuple[float, float]]]:
    """The line without its gaps."""
    steps = [later - earlier for (earlier, _), (later, _) in pairwise(line.points)]
    gap = 2.5 * min(steps, default=1)
    pieces = [[line.points[0]]]
    for before, point in pairwise(line.points):
        if point[0] - before[0] > gap:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _exemplars(plot: Plot, answers: Sequence[Answer], top: float) -> list[str]:
    found = sorted(
        (one for answer in answers for one in answer.exemplars if one.value <= top), key=lambda one: -one.value
    )[:_MOST_EXEMPLARS]
    return [
        f'<rect x="-2.5" y="-2.5" width="5" height="5" fill="#1f60c4" fill-opacity="0.75" '
        f'transform="translate({plot.x(one.moment):.1f},{plot.y(one.value, top):.1f}) rotate(45)"/>'
        for one in found
        if plot.moment.start <= one.moment <= plot.moment.end
    ]


def _legend_rows(legends: Sequence[tuple[str, str]], width: int) -> Iterable[list[tuple[int, str, float]]]:
    """Lines of (number, text, x), as many as fit."""
    shown = legends if len(legends) <= _MOST_LEGENDS else legends[: _MOST_LEGENDS - 1]
    texts = [f"{name}  {value}" for name, value in shown]
    if len(shown) < len(legends):
        texts.append(f"and {len(legends) - len(shown)} more")
    row: list[tuple[int, str, float]] = []
    x = 8.0
    for number, text in enumerate(texts):
        room = len(text) * CHARACTER + 26
        if row and x + room > width:
            yield row
            row, x = [], 8.0
        row.append((number, text, x))
        x += room
    yield row


def _legends(rows: Sequence[list[tuple[int, str, float]]], top: float) -> Iterable[str]:
    for line, row in enumerate(rows):
        y = top + line * _LEGEND_LINE + 10
        for number, text, x in row:
            more = text.startswith("and ") and text.endswith(" more")
            colour = "none" if more else PALETTE[number % len(PALETTE)]
            yield f'<rect x="{x:.1f}" y="{y - 4}" width="9" height="3" rx="1" fill="{colour}"/>'
            yield label(x + 13, y, text, colour="#495057")
