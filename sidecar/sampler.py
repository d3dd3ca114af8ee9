"""The loop: listeners and pages every 100 ms, everything else every second, one ``Snapshot`` a second.

Costs on an idle host are dominated by Python, not by the kernel; see ``benchmarks/``. Nothing here forks, and nothing
blocks longer than a netlink dump.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from sidecar.clock import Clock
from sidecar.collectors import Collectors, NotVisibleError, Visibility
from sidecar.connections import Connections
from sidecar.connects import Connects
from sidecar.details import Details, ReadInterfaces
from sidecar.facts import Facts
from sidecar.kernel.inet_diag import read_bound, read_listeners, shows_bound
from sidecar.kernel.interfaces import read_interfaces
from sidecar.kernel.netlink import DiagSocket
from sidecar.kernel.unix_diag import by_role, read_unix_queues
from sidecar.listeners import ListenerOwners, ListenerTracker
from sidecar.mapped_pages import MappedPages
from sidecar.namespaces import NamespaceFollower
from sidecar.netns import read_namespace_counters
from sidecar.observe import FaultWatch
from sidecar.outside_watch import OutsideWatch
from sidecar.own_page import OwnPage
from sidecar.pages import OutputBacklog, PageTracker
from sidecar.probe import Probe
from sidecar.processes import ProcessTracker
from sidecar.roles import OTHER, Roles, parse_endpoints
from sidecar.scan_interval import DetailInterval
from sidecar.snapshot import (
    BoundSample,
    ConnectionSample,
    ConnectsSample,
    FaultSample,
    ListenerSample,
    OwnUse,
    Snapshot,
    UnixSample,
)
from sidecar.target import EngineSpec, Target
from telemetry.records import KernelSample
from telemetry.scoreboard import Liveness

TICK_SECONDS: Final = 0.1
TICKS_PER_SNAPSHOT: Final = 10
STARVED_SECONDS: Final = 0.6
"""A longer gap in our own loop says nothing about the engine: timers start anew."""
_GAP_TICKS: Final = 600
_LOOP_TICK_NS: Final = 100_000_000
_GONE: Final = (Liveness.DEAD, Liveness.EXITED)
_CHEAP_UNIX_DUMP_SECONDS: Final = 1e-3
_TICKS_PER_UNIX_DUMP: Final = 5


class Sampler:
    """Watches one engine. ``latest`` is the last snapshot; it is replaced as a whole and safe to read anywhere."""

    def __init__(
        self,
        spec: EngineSpec,
        runtime_dir: Path,
        root: Path = Path("/proc"),
        clock: Clock | None = None,
        diag: DiagSocket | None = None,
        read_links: ReadInterfaces = read_interfaces,
        probe: Probe | None = None,
    ) -> None:
        self._spec = spec
        self._root = root
        self._clock = clock or Clock()
        self._collectors = Collectors(self._clock.monotonic)
        self._visibility = Visibility()
        self._namespace = NamespaceFollower(root, self._visibility, diag)
        self._target = Target(spec, root)
        self._owners = ListenerOwners(root, self._visibility)
        self._listeners = ListenerTracker(spec.port)
        self._processes = ProcessTracker(root, self._visibility)
        self._pages = PageTracker(runtime_dir, self._visibility)
        self._own_page = OwnPage(runtime_dir)
        self._backlog = OutputBacklog()
        self._roles = Roles()
        self._rows: Any = None
        self._tracked = Connections()
        self._connections: tuple[ConnectionSample, ...] = ()
        self._scan = DetailInterval()
        self._attempts = Connects(root, self._visibility, self._clock.thread_cpu)
        self._connects: ConnectsSample | None = None
        self._bound: tuple[BoundSample, ...] = ()
        self._bound_since: dict[int, float] = {}
        self._shows_bound: bool | None = None
        self._unix: tuple[UnixSample, ...] = ()
        self._netns: dict[str, int] = {}
        self._own: OwnUse | None = None
        self._mapped = MappedPages(root)
        self._details = Details(root, runtime_dir, self._visibility, self._namespace, self._clock, read_links)
        self._facts = Facts()
        self._faults = FaultWatch(root)
        self._outside = OutsideWatch(spec.port, probe)
        self._ticks = 0
        self._last_tick: float | None = None
        self._gaps: deque[float] = deque(maxlen=_GAP_TICKS)
        self.latest: Snapshot | None = None

    def run(self, stop: threading.Event) -> None:
        """Sample until ``stop`` is set. Missed ticks are left out, not caught up."""
        self._details.start()
        self._outside.start()
        due = self._clock.monotonic()
        ticks = 0
        while not stop.is_set():
            self.tick()
            if ticks % TICKS_PER_SNAPSHOT == 0:
                self.snapshot()
            ticks += 1
            now = self._clock.monotonic()
            due = max(due + TICK_SECONDS, now - TICK_SECONDS)
            stop.wait(max(due - now, 0))
        self.close()

    @property
    def faults(self) -> tuple[FaultSample, ...]:
        """What the judge finds wrong now, ten times a second."""
        return self._faults.samples

    def close(self) -> None:
        """Let go of pages and sockets."""
        self._details.stop()
        self._outside.stop()
        self._faults.close()
        self._own_page.close()
        self._pages.close()
        self._namespace.close()

    # --- every 100 ms

    def tick(self) -> None:
        """Sample listeners and pages once."""
        now = self._clock.monotonic()
        self._note_gap(now)
        self._rows = None
        self._listeners.samples = self._collectors.run("listeners", self._collect_listeners) or ()
        self._collectors.run("backlog", self._observe_backlog, now)
        if self._wants_unix():
            self._unix = self._collectors.run("unix", self._collect_unix) or ()
        self._collectors.run("judge", self._judge, now)
        self._collectors.run("own_page", self._write_own_page, now)

    def _judge(self, now: float) -> None:
        outside = self._outside.facts(self._listeners.samples, now)
        self._faults.look(list(self._pages.pages.values()), now, outside)

    def _wants_unix(self) -> bool:
        """Twice a second, where it is cheap: their names make these rows the slowest to read."""
        self._ticks += 1
        dump = self._collectors.runs.get("unix")
        cheap = dump is not None and dump.success and dump.seconds < _CHEAP_UNIX_DUMP_SECONDS
        return cheap and self._ticks % _TICKS_PER_UNIX_DUMP == 0

    def _note_gap(self, now: float) -> None:
        if self._last_tick is not None:
            self._gaps.append(now - self._last_tick)
            if self._gaps[-1] > STARVED_SECONDS:
                self._backlog.restart_clock()
                self._tracked.restart_clocks(now)
                self._outside.restart_clocks()
        self._last_tick = now

    def _collect_listeners(self) -> tuple[ListenerSample, ...]:
        self._rows = read_listeners(self._namespace.diag)
        return self._listeners.observe(self._rows, self._owners)

    def _observe_backlog(self, now: float) -> None:
        apis, cores = list(self._pages.live("api")), list(self._pages.live("core"))
        if not apis or not cores:
            self._backlog.clear()
            return
        identity = tuple(page.header.created_ns for page in (*apis, *cores))
        received = sum(page.reader["output_messages_received"] for page in apis)
        sent = sum(page.reader["output_messages_sent"] for page in cores)
        self._backlog.observe(identity, received, sent, now)

    def _write_own_page(self, now: float) -> None:
        self._own_page.open(now)
        http = [sample for sample in self._listeners.samples if sample.role == "http"]
        frozen = ("api" in self._faults.frozen) | ("core" in self._faults.frozen) << 1
        wall_ns = self._clock.wall_ns()
        self._own_page.write(
            KernelSample(
                wall_ns,
                sum(sample.depth for sample in http),
                sum(sample.limit for sample in http),
                *self._queued("input"),
                *self._queued("output"),
                frozen,
                self._loop_lag_ms(wall_ns),
            )
        )

    def _queued(self, role: str) -> tuple[int, int]:
        samples: tuple[UnixSample | ConnectionSample, ...] = (*self._unix, *self._connections)
        found = [sample for sample in samples if sample.role == role]
        return sum(sample.receive_bytes for sample in found), sum(sample.send_bytes for sample in found)

    def _loop_lag_ms(self, wall_ns: int) -> int:
        ticks = [page.reader["loop_tick_ns"] for page in self._pages.live("api")]
        return max((max(wall_ns - tick - _LOOP_TICK_NS, 0) // 1_000_000 for tick in ticks if tick), default=0)

    # --- every second

    def snapshot(self) -> Snapshot:
        """Collect everything and publish it as ``latest``; ``tick`` must have run before."""
        run = self._collectors.run
        run("pages", self._collect_pages)
        run("backlog", self._observe_backlog, self._clock.monotonic())
        run("target", self._collect_target)
        run("processes", self._processes.collect, self._target.members, self._dead_labels())
        self._note_processes()
        self._netns = run("netns", self._collect_netns) or {}
        if self._scan.is_due(self._clock.monotonic()):
            self._connections = run("connections", self._collect_connections) or ()
            apart = max(self._scan.seconds, self._scan.detail_seconds)
            self._outside.note_scan(self._connections, apart, self._clock.monotonic())
            self._connects = run("connects", self._collect_connects)
        self._bound = run("bound", self._collect_bound) or ()
        self._unix = run("unix", self._collect_unix) or ()
        self._own = run("own", self._processes.read_own)
        self._facts = self._collect_facts()
        self.latest = self._assemble()
        return self.latest

    def _collect_pages(self) -> None:
        mapped = self._mapped.find(self._target.members, self._pages.owners(), self._clock.monotonic())
        self._pages.follow(mapped)
        self._pages.scan()
        self._pages.collect()
        self._faults.keep(self._pages.owners())
        endpoints = self._pages.endpoints()
        if endpoints:
            self._roles = parse_endpoints(endpoints)
            self._listeners.set_roles(self._roles.ports)

    def _collect_target(self) -> None:
        rows, port = self._rows, self._spec.port
        self._target.refresh()
        on_port = set() if rows is None or port is None else set(rows["inode"][rows["port"] == port].tolist())
        members = (member.pid for member in self._target.members)
        processes = self._target.table.processes
        likely_first = [pid for pid in dict.fromkeys([*members, *self._pages.owners(), *processes]) if pid in processes]
        owner = self._owners.find(on_port, likely_first, self._clock.monotonic())
        self._target.resolve(self._pages.owners(), owner)
        if rows is not None:
            self._owners.update(set(rows["inode"].tolist()), self._target.members)
        self._namespace.follow(self._target.members)

    def _dead_labels(self) -> set[str]:
        """Roles with fewer living processes than pages: one died, and no other has taken its place."""
        living = Counter(member.label for member in self._target.members)
        pages = Counter(page.header.role for page in self._pages.pages.values())
        gone = {page.header.role for page in self._pages.pages.values() if page.liveness in _GONE}
        return {role for role in gone if living[role] < pages[role]}

    def _collect_connections(self) -> tuple[ConnectionSample, ...]:
        started, cpu = self._clock.monotonic(), self._clock.thread_cpu()
        detailed = self._scan.wants_detail(started)
        found = self._tracked.scan(self._namespace.diag, self._listeners.ports, started, detailed)
        self._scan.note(started, self._clock.thread_cpu() - cpu, detailed)
        return tuple(replace(sample, limit=self._connections_limit(sample.port)) for sample in found)

    def _connections_limit(self, port: int) -> int | None:
        """Descriptors that the processes behind a listener may open, together; None where one is not known."""
        holders = self._holders(port)
        limits = [sample.max_fds for sample in self._processes.samples if sample.pid in holders]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if known and len(known) == len(limits) else None

    def _holders(self, port: int | None) -> set[int]:
        """Processes of the engine that serve the port, as far as can be seen."""
        if self._rows is None or port is None:
            return set()
        inodes = set(self._rows["inode"][self._rows["port"] == port].tolist())
        parents = {pid: process.parent for pid, process in self._target.table.processes.items()}
        return self._owners.holders(inodes, parents)

    def _note_processes(self) -> None:
        paged = bool(self._pages.pages)
        self._outside.note_processes(self._processes.samples, self._holders(self._spec.port), paged)

    def _collect_connects(self) -> ConnectsSample:
        opens, now = self._netns.get("ActiveOpens"), self._clock.monotonic()
        return self._attempts.scan(self._namespace.diag, self._target.members, opens, now)

    def _collect_bound(self) -> tuple[BoundSample, ...]:
        if self._rows is None:
            return ()
        if self._shows_bound is None:
            self._shows_bound = shows_bound(self._namespace.own)
        if not self._shows_bound:
            raise NotVisibleError("Linux before 6.8 does not show sockets that are bound and do not listen")
        listening = set(self._rows["port"].tolist())
        vacant = read_bound(self._namespace.diag, [port for port in self._listeners.roles if port not in listening])
        now = self._clock.monotonic()
        since = {port: self._bound_since.get(port, now) for port, sockets in vacant.items() if sockets}
        self._bound_since = since
        return tuple(
            BoundSample(port, role, vacant.get(port, 0), now - since.get(port, now))
            for port, role in self._listeners.roles.items()
        )

    def _collect_unix(self) -> tuple[UnixSample, ...]:
        paths = self._roles.paths
        queues = by_role(paths.values(), read_unix_queues(self._namespace.diag, list(paths)))
        return tuple(UnixSample(role, **asdict(found)) for role, found in queues.items())

    def _collect_netns(self) -> dict[str, int]:
        pids = [member.pid for member in self._target.members]
        if not pids and not self._namespace.is_ours:
            raise NotVisibleError("no process to read the counters of its namespace by")
        return read_namespace_counters(self._root, pids[0] if pids else "self")

    def _collect_facts(self) -> Facts:
        listening = set() if self._rows is None else set(self._rows["port"].tolist())
        roles = self._listeners.roles | self._listeners.ports
        pages = self._pages.pages.values()
        return self._details.collect(self._collectors, self._target.members, pages, roles, listening)

    def _assemble(self) -> Snapshot:
        pages = self._pages
        return Snapshot(
            wall_ns=self._clock.wall_ns(),
            monotonic=self._clock.monotonic(),
            engine=self._spec.name,
            engine_up=self._engine_up(),
            engine_found=self._target.found,
            processes=self._processes.samples,
            process_up=self._processes.up,
            process_starts=dict(self._processes.starts),
            cpu_seconds=self._processes.cpu_seconds,
            listeners=self._listeners.samples,
            bound=self._bound,
            connections=self._connections,
            connects=self._connects,
            unix=self._unix,
            netns=self._netns,
            pages=pages.samples(),
            page_totals=pages.totals(),
            page_histograms=pages.histograms(),
            output_unreceived=self._backlog.messages,
            output_unreceived_age=self._backlog.age,
            own=self._own,
            facts=self._facts,
            faults=self._faults.samples,
            outside_process=self._outside.process,
            probe_up=self._outside.probe_up,
            page_errors=pages.errors,
            records_lost=pages.lost,
            scan_interval_seconds=self._scan.seconds,
            detail_interval_seconds=self._scan.detail_seconds,
            loop_gap_seconds=max(self._gaps, default=0.0),
            netlink_retries=self._namespace.retries,
            collectors=dict(self._collectors.runs),
            visible=dict(self._visibility.facts),
        )

    def _engine_up(self) -> bool:
        """By its processes; where those are hidden, by its listener or by the locks on its pages."""
        listening = any(sample.sockets and sample.role != OTHER for sample in self._listeners.samples)
        locked = any(page.owner is not None for page in self._pages.pages.values())
        return bool(self._processes.samples) or listening or locked
