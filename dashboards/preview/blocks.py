"""Heatmaps, states over time, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from dashboards.model import Panel
from dashboards.preview.answers import Answer, Moment
from dashboards.preview.plot import CHARACTER, COLOURS, Plot, label, svg
from dashboards.preview.units import write
from dashboards.prometheus import Line


def heatmap(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    """How many observations fell into which bucket when."""
    bounds = sorted(answers[0].lines, key=lambda line: float(line.labels["le"]))
    counts = list(_differences(bounds))
    used = [number for number, column in enumerate(counts) if any(value > 0.01 for value in column.values())] or [0]
    low, high = max(used[0] - 1, 0), min(used[-1] + 1, len(bounds) - 1)
    plot = Plot(moment, width, height, right_axis=False)
    row = (plot.bottom - plot.top) / (high - low + 1)
    most = max(value for column in counts for value in column.values()) or 1
    moments = sorted({at for column in counts for at in column})
    length = min((later - earlier for earlier, later in pairwise(moments)), default=1)
    parts = [*plot.times(3), *plot.alerts()]
    for number in range(low, high + 1):
        y = plot.bottom - (number - low + 1) * row
        bound = float(bounds[number].labels["le"])
        text = "more" if bound == float("inf") else write(bound, panel.unit)
        parts.append(label(plot.left - 5, y + row / 2 + 3, text, "end", 9))
        for at, value in counts[number].items():
            x = plot.x(at - length)
            place = f'x="{x:.1f}" y="{y:.1f}" width="{max(plot.x(at) - x - 1, 0):.1f}" height="{row - 1:.1f}"'
            opacity = 0.12 + 0.88 * (value / most) ** 0.5
            if value > 0.01:
                parts.append(f'<rect {place} fill="#e0752d" fill-opacity="{opacity:.2f}"/>')
    parts += _points(plot, answers, [float(line.labels["le"]) for line in bounds], low, row)
    return svg(width, height, parts)


def _points(plot: Plot, answers: Sequence[Answer], bounds: Sequence[float], low: int, row: float) -> Iterable[str]:
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


def states(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    """One bar for each series, in the colours of its words."""
    series = [one for answer in answers for one in answer.named()]
    left = min(int(max(len(name) for name, _ in series) * CHARACTER) + 14, width // 2)
    plot = Plot(moment, width, height, right_axis=False)
    plot.left = left
    row = (plot.bottom - plot.top) / len(series)
    parts = [*plot.times(3)]
    for number, (name, line) in enumerate(series):
        y = plot.top + number * row
        parts.append(label(left - 6, y + row / 2 + 3, name, "end", min(10, row)))
        for at, end, value in _runs(line):
            word = panel.words.get(round(value))
            colour = COLOURS[word.colour] if word else "#adb5bd"
            x = plot.x(at)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{plot.x(end) - x + 0.6:.1f}" height="{max(row - 2, 1):.1f}" '
                f'fill="{colour}" fill-opacity="0.8"/>'
            )
    return svg(width, height, [*parts, *plot.alerts()])


def _runs(line: Line) -> Iterable[tuple[float, float, float]]:
    """Since when, until when and which value; the last until its own moment."""
    start, value = line.points[0]
    for at, current in line.points[1:]:
        if current != value:
            yield start, at, value
            start, value = at, current
    yield start, line.points[-1][0], value


def table(panel: Panel, answers: Sequence[Answer], moment: Moment, width: int, height: int) -> str:
    """The series that are there at the end, as HTML."""
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
