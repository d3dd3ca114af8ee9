"""What the sidecar sees beside listeners, connections and pages, as plain data; all of it is a part of ``Snapshot``.

A fact that could not be seen is None or missing, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FdSample:
    """The descriptors of one process by kind."""

    label: str
    pid: int
    kinds: dict[str, int]
    """Kind -> descriptors, for the kinds there are (``sidecar.kernel.fdkinds.KINDS``)."""
    unread: int
    """Descriptors whose kind is not known yet, because there are more than fit the budget of one pass."""


@dataclass(frozen=True, slots=True)
class ThreadsSample:
    """All threads of one process; left out for processes with too many of them."""

    label: str
    pid: int
    stopped: int
    disk_sleep: int
    busiest_ratio: float | None
    """Share of one core that the busiest thread took since the pass before; None in the first pass."""
    busiest_name: str = ""


@dataclass(frozen=True, slots=True)
class IoThreadSample:
    """A thread whose id the process published on its page: main, input, output or receiver."""

    label: str
    kind: str
    pid: int
    up: bool


@dataclass(frozen=True, slots=True)
class SwitchesSample:
    """Context switches of the main threads of all processes that ever had the label."""

    label: str
    voluntary: int
    involuntary: int


@dataclass(frozen=True, slots=True)
class EphemeralSample:
    """Local ports taken towards the destination that takes most of them, TIME_WAIT included."""

    used: int
    size: int
    """Ports in ip_local_port_range, the reserved ones left out."""
    low: int
    high: int
    address: str = ""
    port: int = 0
    """The destination; in snapshots only."""


@dataclass(frozen=True, slots=True)
class InterfaceSample:
    """The interfaces that a role's connections really use in one direction."""

    role: str
    direction: str
    """``receive`` (the interface that owns the local address) or ``send`` (the one the route to the peer takes)."""
    names: tuple[str, ...]
    up: bool
    """Whether all of them have a carrier."""
    speed: int | None
    """Bytes a second of the slowest of them; None when none tells its speed."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The GPUs that the engine's processes use; all visible ones while none of theirs is seen."""

    gpus: int
    utilization: float | None
    """Mean share of the time in which a kernel ran."""
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    """Since the sidecar first saw each of them."""
    process_memory_bytes: dict[str, int] = field(default_factory=dict)
    """Label -> memory that NVML ascribes to its processes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    fds: tuple[FdSample, ...] = ()
    threads: tuple[ThreadsSample, ...] = ()
    io_threads: tuple[IoThreadSample, ...] = ()
    thread_cpu_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Label -> kind of IO thread -> CPU seconds of all that there were."""
    switches: tuple[SwitchesSample, ...] = ()
    proxy_variables: dict[str, bool] | None = None
    """Lower-case name -> whether a process of the engine has it set; values are never read into here."""
    sysctls: dict[str, int] = field(default_factory=dict)
    """Name without its directories -> value in the engine's network namespace."""
    conntrack: int | None = None
    conntrack_limit: int | None = None
    ephemeral: EphemeralSample | None = None
    service_ports_in_range: dict[int, bool] = field(default_factory=dict)
    """Port that the engine listens on, or should -> whether an outgoing connection may take it for its own."""
    interfaces: tuple[InterfaceSample, ...] = ()
    fastest_interface: int | None = None
    """Bytes a second of the fastest interface of the namespace that has a carrier."""
    nodelay: dict[str, bool] = field(default_factory=dict)
    """Role -> whether all of the engine's own TCP sockets of the role that were looked at have TCP_NODELAY."""
    stale_ipc_files: int | None = None
    """Socket files in the runtime directory that nobody in the namespace is bound to."""
    gpu: GpuSample | None = None
