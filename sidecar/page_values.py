"""The engine's pages as metric values: counters over all pages ever seen, gauges over those whose owner may live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sidecar.page_metrics import (
    AGES,
    GATE_STATES,
    HEARTBEATS,
    PAGE_COUNTERS,
    PAGE_GAUGES,
    PROGRESS_SLOTS,
    QUEUE_ENDS,
    Labelled,
)
from sidecar.snapshot import PageSample, Snapshot
from telemetry import catalog
from telemetry.catalog import Metric
from telemetry.layout import API, CORE, EXPORTER
from telemetry.stages import Phase

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]


def page_values(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    """Everything that pages say, histograms apart, one item for each metric."""
    for metric, counters in PAGE_COUNTERS.items():
        yield metric, _counters(snapshot, counters)
    live = [page for page in snapshot.pages if page.may_live]
    for metric, gauges in PAGE_GAUGES.items():
        yield metric, _sums(live, gauges)
    yield from _times(live, snapshot.wall_ns)
    yield from _queues(snapshot, live)
    yield from _states(live)
    yield catalog.KV_BLOCKS, _kv_blocks(live)
    yield catalog.RATE_LIMIT, _rate_limit(live)
    yield catalog.PROCESS_RESTARTS, _restarts(snapshot.pages)
    yield catalog.RECORDS_LOST, _lost(snapshot)


def _slots(pages: Iterable[PageSample], role: str, slot: str) -> list[int]:
    return [page.values[slot] for page in pages if page.role == role and slot in page.values]


def _counters(snapshot: Snapshot, counters: Labelled) -> Values:
    for labels, (role, slot) in counters.items():
        if slot in snapshot.page_totals.get(role, ()):
            yield labels, snapshot.page_totals[role][slot]


def _sums(live: list[PageSample], gauges: Labelled) -> Values:
    for labels, (role, slot) in gauges.items():
        values = _slots(live, role, slot)
        if values:
            yield labels, sum(values)


def _times(live: list[PageSample], wall_ns: int) -> Iterator[tuple[Metric, Values]]:
    yield catalog.OLDEST, _ages(live, AGES, wall_ns)
    longest = _slots(live, CORE.role, "step_longest_ns")
    yield catalog.STEP_LONGEST, _one(max(longest) / 1e9 if longest else None)
    progress: Labelled = {(role,): (role, slot) for role, slot in PROGRESS_SLOTS.items()}
    yield catalog.PROGRESS, _earliest(live, progress)
    yield catalog.HEARTBEAT, _earliest(live, HEARTBEATS)


def _ages(live: list[PageSample], ages: Labelled, wall_ns: int) -> Values:
    """Seconds since the oldest moment; 0 while there is nothing there."""
    for labels, (role, slot) in ages.items():
        moments = _slots(live, role, slot)
        if moments:
            oldest = min((moment for moment in moments if moment), default=wall_ns)
            yield labels, max(wall_ns - oldest, 0) / 1e9


def _earliest(live: list[PageSample], sources: Labelled) -> Values:
    """Unix time of the one that is furthest behind; absent before the first."""
    for labels, (role, slot) in sources.items():
        moments = [moment for moment in _slots(live, role, slot) if moment]
        if moments:
            yield labels, min(moments) / 1e9


def _queues(snapshot: Snapshot, live: list[PageSample]) -> Iterator[tuple[Metric, Values]]:
    """Depths are differences of counters that each side writes at its own end of a queue."""
    cores = [page for page in live if page.role == CORE.role]
    yield catalog.QUEUE_DEPTH, _depths(cores, QUEUE_ENDS)
    yield catalog.INPUT_UNRECEIVED, _one(snapshot.input_unreceived)
    yield catalog.INPUT_UNRECEIVED_AGE, _one(snapshot.input_unreceived_age)
    yield catalog.OUTPUT_UNRECEIVED, _one(snapshot.output_unreceived)
    yield catalog.OUTPUT_UNRECEIVED_AGE, _one(snapshot.output_unreceived_age)


def _depths(cores: list[PageSample], ends: Labelled) -> Values:
    for labels, (put, got) in ends.items():
        both = [core.values for core in cores if put in core.values and got in core.values]
        if both:
            yield labels, sum(max(values[put] - values[got], 0) for values in both)


def _states(live: list[PageSample]) -> Iterator[tuple[Metric, Values]]:
    gates = _slots(live, API.role, "gate")
    yield catalog.GATE, (((name,), value in gates) for value, name in GATE_STATES.items() if gates)
    phases = _slots(live, CORE.role, "phase")
    yield catalog.CORE_PHASE, (((phase.name.lower(),), phases.count(phase)) for phase in Phase if phases)


def _kv_blocks(live: list[PageSample]) -> Values:
    cores = [page.values for page in live if page.role == CORE.role and "kv_blocks_used" in page.values]
    if cores:
        used = sum(values["kv_blocks_used"] for values in cores)
        yield ("used",), used
        yield ("free",), sum(values["kv_blocks_total"] for values in cores) - used


def _rate_limit(live: list[PageSample]) -> Values:
    rates = [rate for rate in _slots(live, API.role, "limiter_rate_milli") if rate]
    return (((), sum(rates) / 1000),) if rates else ()


def _restarts(pages: Iterable[PageSample]) -> Values:
    """The launcher writes on each page how often the process was started before; the dead tell it, too."""
    counts = [page.generation for page in pages if page.role == CORE.role]
    return (((CORE.role,), sum(counts)),) if counts else ()


def _lost(snapshot: Snapshot) -> Values:
    exporter = snapshot.page_totals.get(EXPORTER.role)
    if API.role in snapshot.page_totals:
        yield ("sidecar",), snapshot.records_lost
    if exporter is not None:
        yield ("exporter",), exporter["records_lost"]


def _one(value: float | None) -> Values:
    return () if value is None else (((), value),)
