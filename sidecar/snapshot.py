"""Everything the sidecar saw at one instant, as plain data: recorded, replayed, judged and turned into metrics.

Counters here have already been carried over restarts of the engine: they never go back while the sidecar lives.
A fact that could not be seen is None or missing, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from sidecar.facts import Facts


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of the engine. ``pid`` and ``start_ticks`` identify it; metrics carry its label only."""

    label: str
    pid: int
    start_ticks: int
    state: str
    cpu_seconds: float
    """Of this process since it started; ``Snapshot.cpu_seconds`` has the sums that survive restarts."""
    resident_bytes: int
    threads: int
    started: float
    """Unix time of its start."""
    open_fds: int | None = None
    max_fds: int | None = None
    memory_limit_bytes: int | None = None
    """Of its control groups or the host; None where neither can be read."""


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """Counts of a histogram, not cumulative, the +Inf bucket last; bounds and sum in the unit of the metric."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """Bucket index -> a request that fell into it."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One request behind a bucket."""

    trace_id: str
    value: float
    timestamp: float


@dataclass(frozen=True, slots=True)
class ListenerSample:
    """One listening port; its sockets (several with SO_REUSEPORT) together."""

    port: int
    role: str
    sockets: int
    """0 after the listener vanished."""
    depth: int
    limit: int
    fill: float
    """Depth / limit of the fullest socket; above 1 it drops."""
    drops: int
    """Since the sidecar started, over all sockets that the port has had."""
    fills: HistogramSample
    """``fill`` of every 100 ms sample so far."""
    changes: int = 0
    """Listening sockets, told by their cookies, that replaced or joined the port's first."""


@dataclass(frozen=True, slots=True)
class FaultSample:
    """A fault that the judge finds now."""

    fault: str
    process: str
    seconds: float
    """For how long, as this sidecar saw it."""
    evidence: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundSample:
    """Sockets bound to a port of the engine while none listens on it: clients are refused."""

    port: int
    role: str
    sockets: int
    seconds: float = 0.0
    """For how long, as this sidecar saw it; 0 when there are none."""


@dataclass(frozen=True, slots=True)
class TcpDetail:
    """TCP_INFO and socket memory of a port's connections in one direction; None is unknown to this kernel.

    Times in seconds. ``retransmits`` and ``*_limited`` are counters.
    """

    receive_memory: int
    """Bytes of kernel memory that received data takes."""
    send_memory: int
    rtt_mean: float | None = None
    """Of established connections; None where there are none."""
    rtt_max: float | None = None
    retransmits: int | None = None
    """Segments."""
    receiver_limited: float | None = None
    """Summed over the connections: time that the peer's closed window stopped them."""
    buffer_limited: float | None = None
    unacked: int | None = None
    """Segments."""
    unsent: int | None = None
    """Bytes."""
    delivery_min: int | None = None
    """Bytes a second, of connections that the network holds back; None where there are none."""
    delivery_median: float | None = None
    unanswered: int | None = None
    """Connections with data in and none out since."""
    unanswered_oldest: float | None = None
    never_answered: int | None = None
    """Accepted connections with data in and not one byte out, ever."""
    silent: float | None = None
    """Seconds since any of the connections that are there has sent something; None where none has."""
    overdue: int | None = None
    """Accepted connections where nothing moved for longer than the engine keeps an idle one; 0 if that is not told."""
    network_limited: int | None = None
    """Connections that wait for the network and not for the application."""


@dataclass(frozen=True, slots=True)
class EndSample:
    """The ends of a port's connections in one direction that are on this host."""

    states: dict[str, int]
    receive_max: int
    """Bytes in the fullest queue of a socket that a process holds."""
    send_max: int
    receive_stuck: int
    """Sockets whose queue was never empty and never got shorter for five seconds."""
    send_stuck: int
    zero_window: int
    """Sockets whose peer takes nothing more."""
    detail: TcpDetail | None = None
    """None while it costs too much CPU time."""


@dataclass(frozen=True, slots=True)
class ConnectionSample:
    """Connections of one local port."""

    port: int
    role: str
    states: dict[str, int]
    receive_bytes: int
    send_bytes: int
    unaccepted: int
    """Complete in the kernel, not yet accepted."""
    close_wait_owned: int = 0
    close_wait_oldest: float = 0.0
    """Seconds, of those that a process holds."""
    limit: int | None = None
    """Descriptors that the owners of the listener may open; None when not visible."""
    ends: dict[str, EndSample] = field(default_factory=dict)
    """``accepted``, and for the message roles ``connecting``."""


@dataclass(frozen=True, slots=True)
class ConnectsSample:
    """The engine's attempts to connect that have not been answered since the last scan at least."""

    sockets: int
    oldest: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class UnixSample:
    """The unix sockets of one role, both directions."""

    role: str
    sockets: int
    """All numbers are of the sockets of all cores together."""
    receive_bytes: int
    send_bytes: int
    pending: int = 0
    """Connections that wait for accept()."""
    backlog: int = 0
    """How many may."""
    blocked: int = 0
    """Sending ends that poll as not writable."""


@dataclass(frozen=True, slots=True)
class PageSample:
    """The newest scoreboard page of one process instance, as it is (counters of this generation only)."""

    role: str
    name: str
    pid: int | None
    """As this pid namespace numbers it; None when the owner is gone, 0 when it is not visible here."""
    liveness: str
    generation: int
    created_ns: int
    values: dict[str, int]

    @property
    def may_live(self) -> bool:
        """Whether its owner lives, or may live out of sight."""
        return self.liveness in ("alive", "unknown")


@dataclass(frozen=True, slots=True)
class OwnUse:
    """What the sidecar itself takes."""

    cpu_seconds: float
    resident_bytes: int
    open_fds: int


@dataclass(frozen=True, slots=True)
class CollectorRun:
    """The last run of one collector."""

    success: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that was seen at one instant."""

    wall_ns: int
    monotonic: float
    """The sidecar's clock in seconds; only differences mean anything."""
    engine: str
    engine_up: bool
    engine_found: int = 0
    processes: tuple[ProcessSample, ...] = ()
    process_up: dict[str, bool] = field(default_factory=dict)
    """Every label seen so far -> whether all its processes live."""
    process_starts: dict[str, int] = field(default_factory=dict)
    """Label -> processes found so far."""
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    listeners: tuple[ListenerSample, ...] = ()
    bound: tuple[BoundSample, ...] = ()
    connections: tuple[ConnectionSample, ...] = ()
    connects: ConnectsSample | None = None
    unix: tuple[UnixSample, ...] = ()
    netns: dict[str, int] = field(default_factory=dict)
    """Kernel counter name -> value, in the engine's network namespace."""
    pages: tuple[PageSample, ...] = ()
    page_totals: dict[str, dict[str, int]] = field(default_factory=dict)
    """Page role -> slot -> sum over all pages seen (of use for counters only)."""
    page_histograms: dict[str, dict[str, HistogramSample]] = field(default_factory=dict)
    """Page role -> histogram -> durations in seconds, or sizes in bytes, over all pages seen."""
    input_unreceived: int | None = None
    input_unreceived_age: float | None = None
    output_unreceived: int | None = None
    output_unreceived_age: float | None = None
    own: OwnUse | None = None
    facts: Facts = field(default_factory=Facts)
    faults: tuple[FaultSample, ...] = ()
    outside_process: str | None = None
    """Label under which an engine without pages is judged; None for one that has some."""
    probe_up: bool | None = None
    """Whether the last probe was answered; None without one."""
    page_errors: int = 0
    records_lost: int = 0
    loop_gap_seconds: float = 0.0
    starved_seconds: float = 0.0
    scan_interval_seconds: float = 1.0
    """Time between two scans of the connections, which are the older the more there are."""
    detail_interval_seconds: float = 1.0
    """Time between two scans with TCP_INFO; 0 when they cost too much."""
    netlink_retries: int = 0
    collectors: dict[str, CollectorRun] = field(default_factory=dict)
    visible: dict[str, bool] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Snapshot:
        """The inverse of ``to_dict``.

        Raises:
            ValueError: a field is missing or of another type.
        """
        return msgspec.convert(plain, cls, strict=False)
