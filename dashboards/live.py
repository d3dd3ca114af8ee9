"""Whether every panel shows something: asked of a Prometheus that watches an engine under load.

A panel passes when each of its queries has numbers and one of them changes. What may be still, empty or absent is said
in the dashboard itself, with the reason, and is reported as such. Exemplars must lead to traces that somebody has.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dashboards.model import Dashboard, Kind, Panel, Query
from dashboards.prometheus import Line, Server
from enginescope.probe import ProbeError, get
from enginescope.trace import TraceError, read_records

_WINDOW: Final = 120.0
"""Seconds before now in which values must change."""
_POINTS: Final = 120
"""As many as there are scrapes at most: what lasts for one of them is seen."""
_EXEMPLAR_WINDOW: Final = 600.0
_EXEMPLARS_EACH: Final = 3
_POLL: Final = 2.0

Known = Callable[[str], bool]
"""Whether somebody has the trace of an id."""


class Verdict(Enum):
    """What came of a panel."""

    MOVES = "moves"
    STEADY = "steady"
    """Has numbers, which stand still as the dashboard says they may."""
    QUIET = "quiet"
    """Has none, as the dashboard says of a healthy engine."""
    NOT_HERE = "not here"
    """Needs something this machine lacks."""
    NO_DATA = "no data"
    STILL = "still"
    NO_TRACE = "no trace"

    @property
    def failed(self) -> bool:
        """Whether the panel is at fault."""
        return self in (Verdict.NO_DATA, Verdict.STILL, Verdict.NO_TRACE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One panel and what came of it."""

    dashboard: str
    panel: Panel
    verdict: Verdict
    why: str = ""
    exemplars: int = 0
    """How many were followed to their trace."""


def check(found: Iterable[Dashboard], server: Server, known: Known, wait: float = 60.0) -> list[Finding]:
    """Ask for every panel; those that fail again and again, until they pass or so many seconds are over.

    Raises:
        ProbeError: Prometheus does not answer.
    """
    panels = [
        (dashboard.uid, panel) for dashboard in found for panel in dashboard.panels if panel.kind is not Kind.TEXT
    ]
    findings = [_look(uid, panel, server, known) for uid, panel in panels]
    deadline = time.monotonic() + wait
    while any(finding.verdict.failed for finding in findings) and time.monotonic() < deadline:
        time.sleep(_POLL)
        findings = [_look(one.dashboard, one.panel, server, known) if one.verdict.failed else one for one in findings]
    return findings


def _look(uid: str, panel: Panel, server: Server, known: Known) -> Finding:
    asked = [query for query in panel.queries if not query.jaeger]
    answers = [server.lines(query.expression, _WINDOW, points=_POINTS) for query in asked]
    verdict, why = _numbers(panel, asked, answers)
    if verdict.failed or not any(answers):
        return Finding(uid, panel, verdict, why)
    followed, lost = _follow(asked, server, known)
    return Finding(uid, panel, Verdict.NO_TRACE if lost else verdict, lost or why, followed)


def _numbers(panel: Panel, asked: Sequence[Query], answers: Sequence[Sequence[Line]]) -> tuple[Verdict, str]:
    """What the answers to a panel's queries say of it, and why."""
    if panel.hardware and not any(answers):
        return Verdict.NOT_HERE, panel.hardware
    if silent := [query for query, lines in zip(asked, answers, strict=True) if not lines and not query.optional]:
        return Verdict.NO_DATA, f"of {_named(silent)}"
    if not any(answers):
        return Verdict.QUIET, asked[0].optional
    if any(line.moves for lines in answers for line in lines):
        return Verdict.MOVES, ""
    if reason := panel.steady or panel.hardware:
        return Verdict.STEADY, reason
    return Verdict.STILL, f"the same values for {_WINDOW:.0f} s"


def _named(queries: Sequence[Query]) -> str:
    return ", ".join(query.legend or query.expression for query in queries)


def _follow(asked: Sequence[Query], server: Server, known: Known) -> tuple[int, str]:
    """How many exemplars led to a trace, and what is wrong with the others."""
    followed = 0
    for query in asked:
        if not query.exemplars:
            continue
        exemplars = server.exemplars(query.expression, _EXEMPLAR_WINDOW)[:_EXEMPLARS_EACH]
        if not exemplars:
            return followed, f"{query.legend}: no exemplar"
        if lost := [one.trace_id for one in exemplars if not known(one.trace_id)]:
            return followed, f"{query.legend}: nobody has the trace {lost[0]}"
        followed += len(exemplars)
    return followed, ""


# --- who has a trace


def known_traces(runtime_dir: Path, url: str | None = None) -> Known:
    """Look for traces in shared memory and, when an address is given, at an OTLP sink or at Jaeger.

    Raises:
        ProbeError: the address is not one.
    """
    parts = urlsplit(url) if url else None
    if parts is not None and (parts.scheme != "http" or not parts.hostname or not parts.port):
        raise ProbeError(f"{url!r} is not the address of an OTLP sink or of Jaeger, such as http://127.0.0.1:4318")

    def known(trace_id: str) -> bool:
        if trace_id in _recorded(runtime_dir):
            return True
        return parts is not None and bool(_stored(parts.hostname or "", parts.port or 0, parts.path, trace_id))

    return known


def _recorded(runtime_dir: Path) -> set[str]:
    try:
        return {record.trace_id.hex() for record in read_records(runtime_dir)}
    except TraceError:
        return set()


def _stored(host: str, port: int, prefix: str, trace_id: str) -> Any:
    """The spans of a trace, as our sink (a list) or Jaeger (an object with ``data``) has them."""
    try:
        answer = json.loads(get(port, f"{prefix.rstrip('/')}/api/traces/{trace_id}", host))
    except (ProbeError, ValueError):
        return []
    return answer.get("data") if isinstance(answer, dict) else answer


# --- what to say


def summary(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings in numbers, and every fault."""
    every = list(findings)
    counts = Counter(finding.verdict for finding in every)
    return {
        "panels": len(every),
        **{verdict.value.replace(" ", "_"): counts[verdict] for verdict in Verdict},
        "exemplars_followed": sum(finding.exemplars for finding in every),
        "faults": [
            {"dashboard": one.dashboard, "panel": one.panel.id, "title": one.panel.title, "fault": fault(one)}
            for one in every
            if one.verdict.failed
        ],
    }


def fault(finding: Finding) -> str:
    """The verdict and why."""
    return f"{finding.verdict.value} {finding.why}".strip()
