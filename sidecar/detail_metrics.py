"""``Facts`` as values of metric families, named by ``telemetry.catalog`` only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sidecar.facts import Facts, GpuSample
from sidecar.snapshot import Snapshot
from telemetry import catalog
from telemetry.catalog import Metric

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]
UNREAD: Final = "unread"
"""The kind of descriptors that were not looked at yet."""


def detail_values(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    """Every metric of ``snapshot.facts`` and of the unix sockets' queues."""
    facts = snapshot.facts
    yield from _processes(facts)
    yield from _network(facts)
    yield from _unix(snapshot)
    if facts.gpu is not None:
        yield from _gpu(facts.gpu)


def _one(value: float | None) -> Values:
    return () if value is None else (((), value),)


def _by_label(values: Mapping[str, float]) -> Values:
    return (((label,), value) for label, value in sorted(values.items()))


def _sums(values: Iterable[tuple[Labels, float]]) -> Values:
    found: dict[Labels, float] = {}
    for labels, value in values:
        found[labels] = found.get(labels, 0) + value
    return sorted(found.items())


def _processes(facts: Facts) -> Iterator[tuple[Metric, Values]]:
    kinds = [((one.label, kind), count) for one in facts.fds for kind, count in one.kinds.items()]
    unread = [((one.label, UNREAD), one.unread) for one in facts.fds if one.unread]
    yield catalog.PROCESS_FD_KINDS, _sums([*kinds, *unread])
    yield catalog.THREADS_BLOCKED, _sums(((one.label,), one.stopped + one.disk_sleep) for one in facts.threads)
    busiest: dict[str, float] = {}
    for one in facts.threads:
        if one.busiest_ratio is not None:
            busiest[one.label] = max(busiest.get(one.label, 0.0), one.busiest_ratio)
    yield catalog.BUSIEST_THREAD, _by_label(busiest)
    yield catalog.CONTEXT_SWITCHES, _switches(facts)
    up: dict[Labels, bool] = {}
    for thread in facts.io_threads:
        labels = (thread.label, thread.kind)
        up[labels] = up.get(labels, True) and thread.up
    yield catalog.THREAD_UP, sorted(up.items())
    cpu = (((label, kind), value) for label, kinds in facts.thread_cpu_seconds.items() for kind, value in kinds.items())
    yield catalog.THREAD_CPU, sorted(cpu)
    yield catalog.PROXY_VARIABLE, _by_label(facts.proxy_variables or {})


def _switches(facts: Facts) -> Values:
    for one in facts.switches:
        yield (one.label, "voluntary"), one.voluntary
        yield (one.label, "involuntary"), one.involuntary


def _network(facts: Facts) -> Iterator[tuple[Metric, Values]]:
    yield catalog.SYSCTL, _by_label(facts.sysctls)
    yield catalog.CONNTRACK_ENTRIES, _one(facts.conntrack)
    yield catalog.CONNTRACK_LIMIT, _one(facts.conntrack_limit)
    if facts.ephemeral is not None:
        yield catalog.EPHEMERAL_USED, _one(facts.ephemeral.used)
        yield catalog.EPHEMERAL_LIMIT, _one(facts.ephemeral.size)
    inside = [str(port) for port, in_range in facts.service_ports_in_range.items() if in_range]
    yield catalog.PORTS_IN_EPHEMERAL_RANGE, _one(len(inside) if facts.service_ports_in_range else None)
    speeds = {(one.role, one.direction): one.speed for one in facts.interfaces if one.speed is not None}
    yield catalog.INTERFACE_SPEED, speeds.items()
    yield catalog.INTERFACE_UP, (((one.role, one.direction), one.up) for one in facts.interfaces)
    yield catalog.INTERFACE_FASTEST, _one(facts.fastest_interface)
    yield catalog.NODELAY, _by_label(facts.nodelay)


def _unix(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    listening = [sample for sample in snapshot.unix if sample.backlog]
    yield catalog.UNIX_ACCEPT_DEPTH, _by_label({sample.role: sample.pending for sample in listening})
    yield catalog.UNIX_ACCEPT_LIMIT, _by_label({sample.role: sample.backlog for sample in listening})
    yield catalog.UNIX_BLOCKED, _by_label({sample.role: sample.blocked for sample in snapshot.unix})
    yield catalog.UNIX_STALE, _one(snapshot.facts.stale_ipc_files)


def _gpu(gpu: GpuSample) -> Iterator[tuple[Metric, Values]]:
    yield catalog.GPUS, _one(gpu.gpus)
    yield catalog.GPU_UTILIZATION, _one(gpu.utilization)
    yield catalog.GPU_MEMORY_USED, _one(gpu.memory_used_bytes)
    yield catalog.GPU_MEMORY, _one(gpu.memory_bytes)
    yield catalog.GPU_POWER, _one(gpu.power_watts)
    yield catalog.GPU_ENERGY, _one(gpu.energy_joules)
    yield catalog.GPU_PROCESS_MEMORY, _by_label(gpu.process_memory_bytes)
