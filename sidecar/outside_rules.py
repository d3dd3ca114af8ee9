"""The judge's rules for engines without pages. They rest on less, need longer, and say so in their evidence.

None of them speaks when there is a page, which tells more, or when what it rests on cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sidecar.judge import Observation, Rule, Suspicion
from sidecar.outside import OutsideFacts, PortFacts

UNRESPONSIVE: Final = "engine_unresponsive"
_FROZEN_SECONDS: Final = 0.25
_UNREAD_SECONDS: Final = 5.0
_UNPROVEN_SECONDS: Final = 60.0
"""A port that was never seen to do anything may be one that starts."""
_SILENT_SECONDS: Final = 60.0
"""Longer than proxies let a long poll wait."""
_PATIENCE: Final = 3.0
"""What a port took this long for before, it may take this many times as long for."""
_SCANS: Final = 2
_WAITERS: Final = 2
"""One request that waits is a slow one; all of several, with nothing sent to anybody, are not."""
_COMPUTES: Final = 1.5
"""A process that uses more cores than this computes; one that hangs uses none, or spins on one."""
_PROBE_FAILURES: Final = 2
_PROBE_SECONDS: Final = 0.5
_GONE: Final = ("dead", "exited")


def process_frozen(seen: Observation) -> Iterator[Suspicion]:
    """Stopped by a signal or a tracer, as /proc says."""
    outside = _outside(seen)
    for label, pids in outside.frozen.items() if outside else ():
        evidence = {"outside_only": 1.0, "stopped": float(len(pids))}
        yield Suspicion("process_frozen", label, pids, _FROZEN_SECONDS, evidence)


def requests_unread(seen: Observation) -> Iterator[Suspicion]:
    """Connections wait for accept() or with unread bytes, and the process accepts nobody and sends nothing."""
    outside, port = _hanging(seen)
    if outside is None or port is None or not port.unaccepted + port.unread:
        return
    least = _UNREAD_SECONDS if port.acts else _UNPROVEN_SECONDS
    need = max(least, _PATIENCE * port.longest_pause) + _SCANS * port.scan_seconds
    yield Suspicion(UNRESPONSIVE, outside.process, port.acts, need, _evidence(port, 0.6))


def requests_unanswered(seen: Observation) -> Iterator[Suspicion]:
    """Several requests got not one byte, or no more of them, and nothing is sent to anybody else either."""
    outside, port = _hanging(seen)
    if outside is None or port is None or not port.outputs or port.unanswered < _WAITERS:
        return
    need = max(_SILENT_SECONDS, _PATIENCE * port.longest_silence) + _SCANS * port.scan_seconds
    yield Suspicion(UNRESPONSIVE, outside.process, port.outputs, need, _evidence(port, 0.3))


def probe_unanswered(seen: Observation) -> Iterator[Suspicion]:
    """Two probes in a row got no answer of any kind, where there were answers before."""
    outside = _outside(seen)
    failures = outside.probe_failures if outside else None
    if outside is None or failures is None or failures < _PROBE_FAILURES or outside.frozen:
        return
    evidence = {"outside_only": 1.0, "confidence": 0.6, "probe_failures": float(failures)}
    yield Suspicion(UNRESPONSIVE, outside.process, "probe", _PROBE_SECONDS, evidence)


def _outside(seen: Observation) -> OutsideFacts | None:
    paged = any(process.liveness not in _GONE for process in seen.processes)
    return None if paged else seen.outside


def _hanging(seen: Observation) -> tuple[OutsideFacts | None, PortFacts | None]:
    """The port of an engine that is not stopped, and that does not compute as far as its CPU time tells."""
    outside = _outside(seen)
    if outside is None or outside.port is None or outside.frozen:
        return None, None
    cpu = outside.port.cpu_ratio
    return (None, None) if cpu is None or cpu > _COMPUTES else (outside, outside.port)


def _evidence(port: PortFacts, confidence: float) -> dict[str, float]:
    return {
        "outside_only": 1.0,
        "confidence": confidence,
        "waiting": port.unaccepted + max(port.unread, port.unanswered),  # a request may be both
        "unaccepted": port.unaccepted,
        "unread": port.unread,
        "unanswered": port.unanswered,
        "cpu_ratio": port.cpu_ratio or 0.0,
    }


OUTSIDE_RULES: Final[tuple[Rule, ...]] = (process_frozen, requests_unread, probe_unanswered, requests_unanswered)
"""The surest first: of those that name the same fault it is the first whose evidence is told."""
