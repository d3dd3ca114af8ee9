"""The judge's findings as metric values. Faults that a process can have are 0 from the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sidecar.snapshot import Snapshot
from telemetry import catalog
from telemetry.catalog import Metric

_POSSIBLE: Final = {
    "api": ("process_frozen", "process_dead", "event_loop_blocked", "output_thread_stuck"),
    "core": ("process_frozen", "process_dead", "step_stalled", "input_thread_stuck", "output_thread_stuck"),
}
_FROM_OUTSIDE: Final = ("process_frozen", "engine_unresponsive")


def fault_values(snapshot: Snapshot) -> Iterator[tuple[Metric, list[tuple[tuple[str, ...], float]]]]:
    """Fault, duration and evidence, by fault and process."""
    found = {(one.fault, one.process): one for one in snapshot.faults}
    outside = () if snapshot.outside_process is None else _FROM_OUTSIDE
    known = {(fault, snapshot.outside_process or "") for fault in outside} | {
        (fault, page.name) for page in snapshot.pages for fault in _POSSIBLE.get(page.role, ())
    }
    yield catalog.FAULT, [(key, float(key in found)) for key in sorted(known | set(found))]
    yield catalog.FAULT_SECONDS, [(key, one.seconds) for key, one in sorted(found.items())]
    yield catalog.PROBE_UP, [] if snapshot.probe_up is None else [((), float(snapshot.probe_up))]
    yield (
        catalog.FAULT_EVIDENCE,
        [((*key, kind), value) for key, one in sorted(found.items()) for kind, value in sorted(one.evidence.items())],
    )
