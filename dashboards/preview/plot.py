"""What every drawing has: colours, texts, and a plot with its scales."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from dashboards.model import Unit
from dashboards.preview.answers import Moment
from dashboards.preview.units import write

COLOURS: Final = {
    "green": "#56a64b",
    "yellow": "#f2cc0c",
    "orange": "#ff9830",
    "red": "#e02f44",
    "blue": "#3274d9",
    "text": "#24292e",
    "transparent": "none",
}
PALETTE: Final = (
    "#3274d9", "#e0752d", "#56a64b", "#b877d9", "#c4162a", "#37a2a2",
    "#b58900", "#8f3bb8", "#6c757d", "#1f60c4", "#7eb26d", "#ba43a9",
)  # fmt: skip
LEFT, RIGHT, TOP, AXIS = 60, 14, 6, 16
CHARACTER: Final = 5.6
"""Width of a letter at 10 px, near enough to break the legend into lines."""


def svg(width: int, height: int, parts: Iterable[str]) -> str:
    """A picture from its parts."""
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'


def label(x: float, y: float, text: str, anchor: str = "start", size: float = 10, colour: str = "#6c757d") -> str:
    """A text."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def across(moment: Moment, at: float, left: float, right: float) -> float:
    """Where a time is, between two edges."""
    share = (at - moment.start) / max(moment.end - moment.start, 1)
    return left + min(max(share, 0), 1) * (right - left)


class Plot:
    """The part of a panel in which lines are drawn, and its two scales."""

    def __init__(self, moment: Moment, width: int, height: int, right_axis: bool) -> None:
        self.moment = moment
        self.left, self.right = LEFT, width - (LEFT if right_axis else RIGHT)
        self.top, self.bottom = TOP, height - AXIS

    def x(self, at: float) -> float:
        """Where a time is."""
        return across(self.moment, at, self.left, self.right)

    def y(self, value: float, top: float) -> float:
        """Where a value is on a scale that ends at ``top``."""
        return self.bottom - min(max(value / top, 0), 1) * (self.bottom - self.top)

    def axis(self, values: Sequence[float], unit: Unit, right: bool = False) -> Iterable[str]:
        """Numbers beside the plot, with lines across it for those on the left."""
        for value in values:
            y = self.y(value, values[-1])
            if right:
                yield label(self.right + 5, y + 3, write(value, unit))
            else:
                yield f'<line x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e9ecef"/>'
                yield label(self.left - 5, y + 3, write(value, unit), "end")

    def times(self, count: int) -> Iterable[str]:
        """Times of day below the plot."""
        for number in range(count + 1):
            at = self.moment.start + (self.moment.end - self.moment.start) * number / count
            anchor = "start" if number == 0 else "end" if number == count else "middle"
            yield label(self.x(at), self.bottom + 12, time.strftime("%H:%M:%S", time.gmtime(at)), anchor, 9)

    def alerts(self) -> Iterable[str]:
        """When alerts began to fire."""
        for _, since in self.moment.alerts:
            x = self.x(since)
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.bottom}" stroke="#e02f44" '
                f'stroke-dasharray="2 2"/><path d="M{x - 4:.1f},{self.bottom + 1} l8,0 l-4,-6 z" fill="#e02f44"/>'
            )
