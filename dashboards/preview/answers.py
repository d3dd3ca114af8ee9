"""What a dashboard's queries answer, with the names that their legends give to series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dashboards.model import Dashboard, Kind, Panel, Query
from dashboards.prometheus import Exemplar, Line, Server

_LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_NOT_TOLD: Final = frozenset({"__name__", "engine", "instance", "job", "le"})
_COARSE: Final = 48
_FINE: Final = 150
"""Points of a heatmap's columns and of a line."""

Span = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One query and its series."""

    query: Query
    lines: list[Line]
    exemplars: list[Exemplar]

    def named(self) -> list[tuple[str, Line]]:
        """The series with their names in the legend, in the order of the names."""
        return sorted(((legend(self.query, line.labels), line) for line in self.lines), key=lambda one: one[0])


@dataclass(frozen=True, slots=True)
class Moment:
    """The time that a picture shows, and what marks it."""

    start: float
    end: float
    alerts: list[tuple[str, float]]
    """Name of each alert that fired, and since when; Unix seconds."""


def legend(query: Query, labels: Mapping[str, str]) -> str:
    """The name of a series."""
    if query.legend:
        return _LEGEND.sub(lambda match: labels.get(match[1], ""), query.legend).strip()
    return ", ".join(value for label, value in sorted(labels.items()) if label not in _NOT_TOLD and value)


def ask(server: Server, dashboard: Dashboard, moment: Moment) -> dict[int, list[Answer]]:
    """The answers to every query of a dashboard, by panel id.

    Raises:
        ProbeError: Prometheus does not answer.
    """
    return {panel.id: _of_panel(server, panel, moment) for panel in dashboard.panels}


def _of_panel(server: Server, panel: Panel, moment: Moment) -> list[Answer]:
    points = _COARSE if panel.kind is Kind.HEATMAP else _FINE
    length = moment.end - moment.start
    return [
        Answer(
            query,
            server.lines(query.expression, length, moment.end, points),
            server.exemplars(query.expression, length, moment.end) if query.exemplars else [],
        )
        for query in panel.queries
        if not query.jaeger
    ]


def look_back(server: Server, length: float, end: float) -> Moment:
    """The last ``length`` seconds before a moment, with the alerts that fired in them.

    Raises:
        ProbeError: Prometheus does not answer.
    """
    firing = 'ALERTS{alertstate="firing",alertname!="Watchdog",engine="$engine"}'
    found = server.lines(firing, length, end, _FINE)
    return Moment(end - length, end, [(line.labels["alertname"], line.points[0][0]) for line in found])
