"""What a dashboard is made of, before it becomes Grafana's JSON, a lint, a live check or a preview."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple

COLUMNS: Final = 24
"""Width of Grafana's grid."""

Unit = Literal[
    "none", "short", "s", "bytes", "Bps", "percentunit", "reqps", "ops", "cps", "watt", "joule", "bool", "string"
]
"""Grafana's names of units; ``cps`` is counts a second, ``bool`` a state with texts, ``string`` a table of texts."""
Colour = Literal["green", "yellow", "orange", "red", "blue", "text", "transparent"]


class Kind(Enum):
    """Grafana's panel types in use."""

    STAT = "stat"
    LINES = "timeseries"
    STATES = "state-timeline"
    HEATMAP = "heatmap"
    TABLE = "table"
    TRACES = "traces"
    TEXT = "text"


class Limit(NamedTuple):
    """From this value on, this colour."""

    value: float
    colour: Colour


class Word(NamedTuple):
    """A number's text and colour."""

    text: str
    colour: Colour


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    expression: str
    """PromQL; for traces, the Jaeger query as JSON fields in ``jaeger``."""
    legend: str = ""
    exemplars: bool = False
    """Whether the panel shows the trace ids that the histogram carries."""
    optional: str = ""
    """Why it may be empty on a healthy engine."""
    unit: Unit | None = None
    """When it is another than the panel's, with an axis on the right."""
    jaeger: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    id: int
    title: str
    says: str
    """What it shows, how to read it, and what its number means for requests."""
    kind: Kind = Kind.LINES
    unit: Unit = "short"
    queries: tuple[Query, ...] = ()
    width: int = 8
    height: int = 8
    """Of the line it stands in; all panels in a line have the same."""
    limits: tuple[Limit, ...] = ()
    words: dict[int, Word] = field(default_factory=dict)
    stacked: bool = False
    top: float | None = None
    """End of the axis, where it has a natural one."""
    text: str = ""
    """Markdown, for ``Kind.TEXT``."""
    hidden: tuple[str, ...] = ()
    """Columns that a table does not show."""
    steady: str = ""
    """Why its values may stand still under load."""
    hardware: str = ""
    """What it needs that not every machine has."""


@dataclass(frozen=True, slots=True)
class Row:
    """A headline and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    says: str
    rows: tuple[Row, ...]
    traces: bool = False
    """Whether it has a trace id as a variable."""

    @property
    def panels(self) -> list[Panel]:
        """All panels, in reading order."""
        return [panel for row in self.rows for panel in row.panels]


class Cell(NamedTuple):
    """A place in the grid."""

    x: int
    y: int
    width: int
    height: int


def row_id(dashboard: Dashboard, number: int) -> int:
    """Id of the headline of a row: the last ten of the dashboard's hundred."""
    return dashboard.panels[0].id // 100 * 100 + 90 + number


def layout(dashboard: Dashboard) -> Iterator[tuple[Row | Panel, Cell]]:
    """Every headline and panel with its place: from left to right, line after line."""
    y = 0
    for row in dashboard.rows:
        yield row, Cell(0, y, COLUMNS, 1)
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            height = panel.height
            yield panel, Cell(x, y, panel.width, height)
            x += panel.width
        y += height
