"""Questions to a live Prometheus, as a dashboard would ask them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from alerts.build import seconds
from dashboards.variables import fill, usual
from enginescope.probe import ProbeError, get

_TIMEOUT: Final = 10.0
_DISCOVERY_SECONDS: Final = 15.0
_POINTS: Final = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One series of an answer, without the moments at which it has no number."""

    labels: dict[str, str]
    points: list[tuple[float, float]]
    """Unix seconds and value."""

    @property
    def moves(self) -> bool:
        """Whether its value changes."""
        return len({value for _, value in self.points}) > 1


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One request that a bucket remembers."""

    trace_id: str
    value: float
    moment: float
    """Unix seconds."""


class Server:
    """One engine as a Prometheus at ``http://host:port`` knows it."""

    def __init__(self, url: str, engine: str | None = None) -> None:
        """Ask for the engines that it scrapes.

        Raises:
            ProbeError: it does not answer, or has no such engine, or several while none is named.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname or _port(parts.netloc) is None:
            raise ProbeError(f"{url!r} is not the address of a Prometheus, such as http://127.0.0.1:9090")
        self._host, self._port, self._prefix = parts.hostname, _port(parts.netloc) or 80, parts.path.rstrip("/")
        intervals = self._discovered()
        if not intervals:
            raise ProbeError(f"{url} scrapes no engine: it has no active target of the job enginescope")
        if engine is None and len(intervals) != 1:
            raise ProbeError(f"{url} scrapes {_listed(intervals)}: name one with --engine")
        self.engine = engine or next(iter(intervals))
        if self.engine not in intervals:
            raise ProbeError(f"{url} does not scrape engine {self.engine!r}, only {_listed(intervals)}")
        self._scrape_interval = intervals[self.engine]

    def _discovered(self) -> dict[str, float]:
        """The engines; a Prometheus that was just started lists its targets some seconds later."""
        deadline = time.monotonic() + _DISCOVERY_SECONDS
        while not (found := self._engines()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def _engines(self) -> dict[str, float]:
        """Engine -> seconds between scrapes."""
        targets = self._ask("targets", {"state": "active"})["activeTargets"]
        mine = [target for target in targets if target["labels"].get("job") == "enginescope"]
        return {target["labels"].get("engine", ""): seconds(target["scrapeInterval"]) for target in mine}

    def _ask(self, what: str, parameters: dict[str, str]) -> Any:
        path = f"{self._prefix}/api/v1/{what}?{urlencode(parameters)}"
        return json.loads(get(self._port, path, self._host, _TIMEOUT))["data"]

    def _filled(self, expression: str, step: float) -> str:
        """With the window that Grafana would take: four scrapes, or a scrape more than a step."""
        window = max(4 * self._scrape_interval, step + self._scrape_interval)
        return fill(expression, usual(self.engine, f"{math.ceil(window)}s"))

    def lines(self, expression: str, length: float, end: float | None = None, points: int = _POINTS) -> list[Line]:
        """The series of a range query over the ``length`` seconds before ``end`` (now).

        Raises:
            ProbeError: Prometheus does not answer, or refuses the query.
        """
        until = time.time() if end is None else end
        step = max(length / points, self._scrape_interval, 1)
        parameters = {
            "query": self._filled(expression, step),
            "start": f"{until - length:.3f}",
            "end": f"{until:.3f}",
            "step": f"{step:.3f}",
        }
        found = self._ask("query_range", parameters)["result"]
        return [line for one in found if (line := _line(one)).points]

    def exemplars(self, expression: str, length: float, end: float | None = None) -> list[Exemplar]:
        """The exemplars of the series that a query reads, newest first.

        Raises:
            ProbeError: as above.
        """
        until = time.time() if end is None else end
        parameters = {
            "query": self._filled(expression, length / _POINTS),
            "start": f"{until - length:.3f}",
            "end": f"{until:.3f}",
        }
        return sorted(_exemplars(self._ask("query_exemplars", parameters)), key=lambda one: -one.moment)


def _port(netloc: str) -> int | None:
    """The port of ``host:port``; 80 when none is named, None when it is no number."""
    host, colon, port = netloc.rpartition(":")
    if not colon or "]" in port:
        return 80
    return int(port) if host and port.isdigit() and int(port) < 65536 else None


def _listed(engines: dict[str, float]) -> str:
    return ", ".join(sorted(engines)) or "no engine"


def _line(found: Any) -> Line:
    values = [(float(moment), float(value)) for moment, value in found["values"]]
    return Line(found["metric"], [(moment, value) for moment, value in values if math.isfinite(value)])


def _exemplars(found: Any) -> Iterator[Exemplar]:
    for one in found:
        for exemplar in one["exemplars"]:
            if trace_id := exemplar["labels"].get("trace_id"):
                yield Exemplar(trace_id, float(exemplar["value"]), float(exemplar["timestamp"]))
