"""One panel as SVG."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from dashboards.model import Kind, Panel, Unit
from dashboards.preview.answers import Answer, Moment
from dashboards.preview.units import ticks, write
from dashboards.prometheus import Line

COLOURS: Final = {
    "green": "#56a64b",
    "yellow": "#f2cc0c",
    "orange": "#ff9830",
    "red": "#e02f44",
    "blue": "#3274d9",
    "text": "#24292e",
    "transparent": "none",
}
_PALETTE: Final = (
    "#3274d9", "#e0752d", "#56a64b", "#b877d9", "#c4162a", "#37a2a2",
    "#b58900", "#8f3bb8", "#6c757d", "#1f60c4", "#7eb26d", "#ba43a9",
)  # fmt: skip
_LEFT, _RIGHT, _TOP, _AXIS = 60, 14, 6, 16
_LEGEND_LINE: Final = 14
_CHARACTER: Final = 5.6
"""Width of a letter at 10 px, near enough to break the legend into lines."""
_MOST_LEGENDS: Final = 9
_MOST_EXEMPLARS: Final = 60
"""Of the slowest; more would hide the lines."""


def draw(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    """The panel's body; its title is the page's."""
    if not any(answer.lines for answer in answers):
        return _empty(panel, width, height)
    return _DRAWERS[panel.kind](panel, answers, moment, width, height)


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: float = 10, colour: str = "#6c757d") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def _empty(panel: Panel, width: int, height: int) -> str:
    reason = panel.hardware and f"needs {panel.hardware}"
    reason = reason or next((query.optional for query in panel.queries if query.optional), "") or "no data"
    return _svg(width, height, [_text(width / 2, height / 2, reason, "middle", 11)])


# --- a number


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
        _text(width / 2, height / 2 + size / 3, text, "middle", size, "#ffffff" if filled else COLOURS["text"])
    )
    return _svg(width, height, parts)


def _by_limit(panel: Panel, value: float) -> str:
    reached = [limit.colour for limit in panel.limits if value >= limit.value]
    return COLOURS[reached[-1] if reached else "green"]


def _sparkline(line: Line, moment: Moment, width: int, height: int) -> str:
    top = max(value for _, value in line.points) or 1
    points = [(_x(moment, at, 0, width), height - value / top * height * 0.45) for at, value in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polygon points="{points[0][0]:.1f},{height} {path} {points[-1][0]:.1f},{height}" fill="#3274d9" '
        f'fill-opacity="0.13"/><polyline points="{path}" fill="none" stroke="#3274d9" stroke-opacity="0.6"/>'
    )


def _x(moment: Moment, at: float, left: float, right: float) -> float:
    share = (at - moment.start) / max(moment.end - moment.start, 1)
    return left + min(max(share, 0), 1) * (right - left)


# --- lines


class _Plot:
    """The part of a panel in which lines are drawn, and its two scales."""

    def __init__(self, moment: Moment, width: int, height: int, right_axis: bool) -> None:
        self.moment = moment
        self.left, self.right = _LEFT, width - (_LEFT if right_axis else _RIGHT)
        self.top, self.bottom = _TOP, height - _AXIS

    def x(self, at: float) -> float:
        return _x(self.moment, at, self.left, self.right)

    def y(self, value: float, top: float) -> float:
        return self.bottom - min(max(value / top, 0), 1) * (self.bottom - self.top)

    def axis(self, values: Sequence[float], unit: Unit, right: bool = False) -> Iterable[str]:
        for value in values:
            y = self.y(value, values[-1])
            if right:
                yield _text(self.right + 5, y + 3, write(value, unit))
            else:
                yield f'<line x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e9ecef"/>'
                yield _text(self.left - 5, y + 3, write(value, unit), "end")

    def times(self, count: int) -> Iterable[str]:
        for number in range(count + 1):
            at = self.moment.start + (self.moment.end - self.moment.start) * number / count
            anchor = "start" if number == 0 else "end" if number == count else "middle"
            yield _text(self.x(at), self.bottom + 12, time.strftime("%H:%M:%S", time.gmtime(at)), anchor, 9)

    def alerts(self) -> Iterable[str]:
        for _, since in self.moment.alerts:
            x = self.x(since)
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.bottom}" stroke="#e02f44" '
                f'stroke-dasharray="2 2"/><path d="M{x - 4:.1f},{self.bottom + 1} l8,0 l-4,-6 z" fill="#e02f44"/>'
            )


def _lines(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    series = [(answer, name, line) for answer in answers for name, line in answer.named()]
    legends = [(name, write(line.points[-1][1], answer.query.unit or panel.unit)) for answer, name, line in series]
    rows = list(_legend_rows(legends, width))
    right_unit = next((answer.query.unit for answer, _, _ in series if answer.query.unit), None)
    plot = _Plot(moment, width, height - len(rows) * _LEGEND_LINE, right_unit is not None)
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
    return _svg(width, height, parts)


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


def _strokes(plot: _Plot, lines: Sequence[Line], top: float, first: int, filled: bool = False) -> list[str]:
    parts = []
    for number, line in reversed(list(enumerate(lines, first))):
        colour = _PALETTE[number % len(_PALETTE)]
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


def _exemplars(plot: _Plot, answers: Sequence[Answer], top: float) -> list[str]:
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
        room = len(text) * _CHARACTER + 26
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
            colour = "none" if more else _PALETTE[number % len(_PALETTE)]
            yield f'<rect x="{x:.1f}" y="{y - 4}" width="9" height="3" rx="1" fill="{colour}"/>'
            yield _text(x + 13, y, text, colour="#495057")


# --- heat, states, tables


def _heatmap(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    bounds = sorted(answers[0].lines, key=lambda line: float(line.labels["le"]))
    counts = list(_differences(bounds))
    used = [number for number, column in enumerate(counts) if any(value > 0.01 for value in column.values())] or [0]
    low, high = max(used[0] - 1, 0), min(used[-1] + 1, len(bounds) - 1)
    plot = _Plot(moment, width, height, right_axis=False)
    row = (plot.bottom - plot.top) / (high - low + 1)
    most = max(value for column in counts for value in column.values()) or 1
    moments = sorted({at for column in counts for at in column})
    length = min((later - earlier for earlier, later in pairwise(moments)), default=1)
    parts = [*plot.times(3), *plot.alerts()]
    for number in range(low, high + 1):
        y = plot.bottom - (number - low + 1) * row
        bound = float(bounds[number].labels["le"])
        text = "more" if bound == float("inf") else write(bound, panel.unit)
        parts.append(_text(plot.left - 5, y + row / 2 + 3, text, "end", 9))
        for at, value in counts[number].items():
            x = plot.x(at - length)
            place = f'x="{x:.1f}" y="{y:.1f}" width="{max(plot.x(at) - x - 1, 0):.1f}" height="{row - 1:.1f}"'
            opacity = 0.12 + 0.88 * (value / most) ** 0.5
            if value > 0.01:
                parts.append(f'<rect {place} fill="#e0752d" fill-opacity="{opacity:.2f}"/>')
    parts += _points(plot, answers, [float(line.labels["le"]) for line in bounds], low, row)
    return _svg(width, height, parts)


def _points(plot: _Plot, answers: Sequence[Answer], bounds: Sequence[float], low: int, row: float) -> Iterable[str]:
    for one in (one for answer in answers for one in answer.exemplars):
        number = next((index for index, bound in enumerate(bounds) if one.value <= bound), len(bounds) - 1)
        if number >= low and plot.moment.start <= one.moment <= plot.moment.end:
            x, y = plot.x(one.moment), plot.bottom - (number - low + 0.5) * row
            yield (
                f'<rect x="-3" y="-3" width="6" height="6" fill="#1f60c4" transform="translate({x:.1f},{y:.1f}) '
                'rotate(45)"/>'
            )


def _differences(bounds: Sequence[Line]) -> Iterable[dict[float, float]]:
    """Observations of each bucket alone, by moment."""
    below: dict[float, float] = {}
    for line in bounds:
        here = dict(line.points)
        yield {at: max(value - below.get(at, 0), 0) for at, value in here.items()}
        below = here


def _states(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    series = [one for answer in answers for one in answer.named()]
    left = min(int(max(len(name) for name, _ in series) * _CHARACTER) + 14, width // 2)
    plot = _Plot(moment, width, height, right_axis=False)
    plot.left = left
    row = (plot.bottom - plot.top) / len(series)
    parts = [*plot.times(3)]
    for number, (name, line) in enumerate(series):
        y = plot.top + number * row
        parts.append(_text(left - 6, y + row / 2 + 3, name, "end", min(10, row)))
        for at, end, value in _runs(line):
            word = panel.words.get(round(value))
            colour = COLOURS[word.colour] if word else "#adb5bd"
            x = plot.x(at)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{plot.x(end) - x + 0.6:.1f}" height="{max(row - 2, 1):.1f}" '
                f'fill="{colour}" fill-opacity="0.8"/>'
            )
    return _svg(width, height, [*parts, *plot.alerts()])


def _runs(line: Line) -> Iterable[tuple[float, float, float]]:
    """Since when, until when and which value; the last until its own moment."""
    start, value = line.points[0]
    for at, current in line.points[1:]:
        if current != value:
            yield start, at, value
            start, value = at, current
    yield start, line.points[-1][0], value


def _table(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    newest = moment.end - (moment.end - moment.start) / 20
    rows = [
        (name, line)
        for answer in answers[len(answers) - 1 :]
        for name, line in answer.named()
        if line.points[-1][0] >= newest
    ]
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{_cell(panel, line)}</td></tr>"
        for name, line in sorted(rows, key=lambda one: one[0])
    )
    return f'<div class="table" style="width:{width}px;height:{height}px"><table>{cells}</table></div>'


def _cell(panel: Panel, line: Line) -> str:
    return "" if panel.unit == "string" else escape(write(line.points[-1][1], panel.unit))


Drawer = Callable[[Panel, Sequence[Answer], Moment, int, int], str]
_DRAWERS: Final[dict[Kind, Drawer]] = {
    Kind.STAT: _stat,
    Kind.LINES: _lines,
    Kind.HEATMAP: _heatmap,
    Kind.STATES: _states,
    Kind.TABLE: _table,
}
