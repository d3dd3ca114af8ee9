"""What a snapshot says as values of metrics, named by ``telemetry.catalog`` only, and as Prometheus families.

What a snapshot does not have yields no sample. Everything is made anew for each snapshot, so a label value that is
gone leaves no stale series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.samples import Exemplar as PrometheusExemplar

from sidecar.connection_metrics import connection_values
from sidecar.detail_metrics import detail_values
from sidecar.fault_metrics import fault_values
from sidecar.page_metrics import PAGE_HISTOGRAMS
from sidecar.page_values import page_values
from sidecar.roles import main_ports
from sidecar.snapshot import HistogramSample, ProcessSample, Snapshot
from telemetry import catalog
from telemetry.catalog import Kind, Metric
from telemetry.layout import COARSE_BOUNDS, COARSE_BYTE_BOUNDS

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]
_STATES: Final = ("stopped", "disk_sleep")
"""States worth a series: the others change many times a second, and a zombie is no longer up."""
_COARSE: Final = frozenset(round(bound / 1e9, 9) for bound in COARSE_BOUNDS) | frozenset(map(float, COARSE_BYTE_BOUNDS))


def families(snapshot: Snapshot, version: str) -> Iterator[Family]:
    """Everything a snapshot says, one family for each metric that has a sample."""
    info = InfoMetricFamily(catalog.BUILD_INFO.name.removesuffix("_info"), catalog.BUILD_INFO.help)
    info.add_metric((), {"version": version})
    yield info
    for metric, values in plain_values(snapshot):
        yield from _family(metric, values)
    for metric, samples in histogram_values(snapshot):
        yield _histogram(metric, samples)


def plain_values(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    """Counters and gauges, one item for each metric, with no values where it has none."""
    yield from _sidecar(snapshot)
    yield from _processes(snapshot)
    yield from _sockets(snapshot)
    yield from connection_values(snapshot)
    yield from page_values(snapshot)
    yield from detail_values(snapshot)
    yield from fault_values(snapshot)


def _family(metric: Metric, values: Values) -> Iterator[Family]:
    build = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = build(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    if family.samples:
        yield family


def _one(value: float | None) -> Values:
    return () if value is None else (((), value),)


def _by_label(values: Mapping[str, float]) -> Values:
    return (((label,), value) for label, value in sorted(values.items()))


def _sidecar(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    runs = snapshot.collectors
    yield catalog.COLLECTOR_SUCCESS, _by_label({name: run.success for name, run in runs.items()})
    yield catalog.SNAPSHOT_DURATION, _one(sum(run.seconds for run in runs.values()) if runs else None)
    yield catalog.VISIBLE, _by_label(snapshot.visible)
    yield catalog.LOOP_GAP, _one(snapshot.loop_gap_seconds)
    yield catalog.STARVED, _one(snapshot.starved_seconds)
    yield catalog.SCAN_INTERVAL, _one(snapshot.scan_interval_seconds)
    yield catalog.DETAIL_INTERVAL, _one(snapshot.detail_interval_seconds)
    yield catalog.LAST_SAMPLE, _one(snapshot.wall_ns / 1e9)
    if snapshot.own is not None:
        yield catalog.SIDECAR_CPU, _one(snapshot.own.cpu_seconds)
        yield catalog.SIDECAR_RSS, _one(snapshot.own.resident_bytes)
        yield catalog.SIDECAR_FDS, _one(snapshot.own.open_fds)
    yield catalog.PAGE_ERRORS, _one(snapshot.page_errors)
    yield catalog.DUMP_RETRIES, _one(snapshot.netlink_retries)
    yield catalog.ENGINE_UP, _one(snapshot.engine_up)
    yield catalog.ENGINE_FOUND, _one(snapshot.engine_found)


def _processes(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    by_label: dict[str, list[ProcessSample]] = {}
    for sample in snapshot.processes:
        by_label.setdefault(sample.label, []).append(sample)

    def total(field: str) -> Values:
        for label, samples in sorted(by_label.items()):
            values = [value for value in (getattr(sample, field) for sample in samples) if value is not None]
            if values:
                yield (label,), sum(values)

    yield catalog.PROCESS_UP, _by_label(snapshot.process_up)
    yield catalog.PROCESS_STATE, _state_sets(by_label)
    yield catalog.PROCESS_STARTS, _by_label(snapshot.process_starts)
    yield catalog.PROCESS_CPU, _by_label(snapshot.cpu_seconds)
    yield catalog.PROCESS_RSS, total("resident_bytes")
    limits = ((label, [sample.memory_limit_bytes for sample in samples]) for label, samples in by_label.items())
    known = {label: [limit for limit in own if limit is not None] for label, own in limits}
    yield catalog.PROCESS_MEMORY_LIMIT, _by_label({label: min(own) for label, own in known.items() if own})
    yield catalog.PROCESS_THREADS, total("threads")
    yield catalog.PROCESS_FDS, total("open_fds")
    yield catalog.PROCESS_MAX_FDS, total("max_fds")
    newest = {label: max(sample.started for sample in samples) for label, samples in by_label.items()}
    yield catalog.PROCESS_START, _by_label(newest)


def _state_sets(by_label: Mapping[str, list[ProcessSample]]) -> Values:
    for label, samples in sorted(by_label.items()):
        states = {sample.state for sample in samples}
        for state in _STATES:
            yield (label, state), state in states


def _sockets(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    listeners = [((str(sample.port), sample.role), sample) for sample in snapshot.listeners]
    yield catalog.LISTENER_UP, ((labels, sample.sockets > 0) for labels, sample in listeners)
    there = [(labels, sample) for labels, sample in listeners if sample.sockets]
    yield catalog.ACCEPT_QUEUE_DEPTH, ((labels, sample.depth) for labels, sample in there)
    yield catalog.ACCEPT_QUEUE_LIMIT, ((labels, sample.limit) for labels, sample in there)
    yield catalog.LISTENER_DROPS, ((labels, sample.drops) for labels, sample in listeners)
    yield catalog.LISTENER_CHANGES, ((labels, sample.changes) for labels, sample in listeners)
    yield catalog.BOUND_NOT_LISTENING, (((str(one.port), one.role), one.sockets) for one in snapshot.bound)
    yield catalog.BOUND_SECONDS, (((str(one.port), one.role), one.seconds) for one in snapshot.bound)
    yield catalog.UNIX_RECEIVE_QUEUE, _by_label({sample.role: sample.receive_bytes for sample in snapshot.unix})
    yield catalog.UNIX_SEND_QUEUE, _by_label({sample.role: sample.send_bytes for sample in snapshot.unix})
    for name, metric in catalog.NETNS_COUNTERS.items():
        yield metric, _one(snapshot.netns.get(name))
    for name, metric in catalog.NETNS_GAUGES.items():
        yield metric, _one(snapshot.netns.get(name))
    aborts = {kind: snapshot.netns[name] for name, kind in catalog.NETNS_ABORT_KINDS.items() if name in snapshot.netns}
    yield catalog.NETNS_ABORTS, _by_label(aborts)


def histogram_values(snapshot: Snapshot) -> Iterator[tuple[Metric, list[tuple[Labels, HistogramSample]]]]:
    """Histograms with the buckets that are exported, one item for each metric that has samples."""
    told = main_ports({sample.port: sample.role for sample in snapshot.listeners})
    fills: list[tuple[Labels, HistogramSample]] = [
        ((str(sample.port), sample.role), sample.fills) for sample in snapshot.listeners if sample.port in told
    ]
    if fills:
        yield catalog.ACCEPT_QUEUE_FILL, fills
    for metric, sources in PAGE_HISTOGRAMS.items():
        found = [
            (labels, snapshot.page_histograms[role][name])
            for labels, (role, name) in sources.items()
            if name in snapshot.page_histograms.get(role, ())
        ]
        if found:
            yield metric, [(labels, _coarse(sample)) for labels, sample in found] if metric.coarse else found


def _histogram(metric: Metric, samples: Iterable[tuple[Labels, HistogramSample]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, sample in samples:
        family.add_metric(labels, _buckets(sample), sample.total)
    return family


def _coarse(sample: HistogramSample) -> HistogramSample:
    """The same with fewer buckets; exemplars go, for they name a bucket."""
    bounds, places = _coarse_buckets(sample.bounds)
    cumulative = (0, *accumulate(sample.counts))
    below = [cumulative[place] for place in places]
    return HistogramSample(bounds, tuple(high - low for low, high in pairwise(below)), sample.total)


@lru_cache(maxsize=16)
def _coarse_buckets(bounds: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The bounds that are exported, and how many of the buckets lie below each of 0, those bounds and infinity."""
    kept = [place for place, bound in enumerate(bounds) if round(bound, 9) in _COARSE]
    return tuple(bounds[place] for place in kept), (0, *(place + 1 for place in kept), len(bounds) + 1)


@lru_cache(maxsize=16)
def bucket_names(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """The ``le`` label of every bucket; rounded, because nanoseconds as seconds have odd last digits."""
    return (*(str(round(bound, 9)) for bound in bounds), "+Inf")


def _buckets(sample: HistogramSample) -> list[tuple[str, float] | tuple[str, float, PrometheusExemplar]]:
    bounds = bucket_names(sample.bounds)
    buckets: list[tuple[str, float] | tuple[str, float, PrometheusExemplar]] = []
    for index, (bound, count) in enumerate(zip(bounds, accumulate(sample.counts), strict=True)):
        found = sample.exemplars.get(index)
        if found is None:
            buckets.append((bound, count))
        else:
            exemplar = PrometheusExemplar({"trace_id": found.trace_id}, found.value, found.timestamp)
            buckets.append((bound, count, exemplar))
    return buckets
