"""The loop: listeners and pages every 100 ms, everything else every second, one ``Snapshot`` a second.

Costs on an idle host are dominated by Python, not by the kernel; see ``benchmarks/``. Nothing here forks, and nothing
blocks longer than a netlink dump.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sidecar.backlog import OutputBacklog
from sidecar.bound import BoundPorts
from sidecar.clock import Clock
from sidecar.collectors import Collectors, NotVisibleError, Visibility
from sidecar.connections import Connections
from sidecar.connects import Connects
from sidecar.details import Details, ReadInterfaces
from sidecar.facts import Facts
from sidecar.input_backlog import InputBacklog
from sidecar.kernel.inet_diag import read_listeners
from sidecar.kernel.interfaces import read_interfaces
from sidecar.kernel.netlink import DiagSocket
from sidecar.listeners import ListenerOwners, ListenerTracker
from sidecar.mapped_pages import MappedPages
from sidecar.namespaces import NamespaceFollower
from sidecar.netns import read_namespace_counters
from sidecar.observe import FaultWatch
from sidecar.outside_watch import OutsideWatch
from sidecar.own_page import OwnPage, kernel_sample
from sidecar.pages import PageTracker
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
from sidecar.unix_queues import UnixQueues

TICK_SECONDS: Final = 0.1
TICKS_PER_SNAPSHOT: Final = 10
STARVED_SECONDS: Final = 0.6
"""A longer gap in our own loop says nothing about the engine: timers start anew."""
_GAP_TICKS: Final = 600


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
        keep_alive: float | None = None,
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
        self._input_backlog = InputBacklog()
        self._roles = Roles()
        self._rows: Any = None
        self._tracked = Connections(keep_alive=keep_alive)
        self._connections: tuple[ConnectionSample, ...] = ()
        self._scan = DetailInterval()
        self._attempts = Connects(root, self._visibility, self._clock.thread_cpu)
        self._connects: ConnectsSample | None = None
        self._bound: tuple[BoundSample, ...] = ()
        self._vacant = BoundPorts()
        self._unix = UnixQueues()
        self._netns: dict[str, int] = {}
        self._own: OwnUse | None = None
        self._mapped = MappedPages(root)
        self._details = Details(root, runtime_dir, self._visibility, self._namespace, self._clock, read_links)
        self._facts = Facts()
        self._faults = FaultWatch(root)
        self._outside = OutsideWatch(spec.port, probe)
        self._last_tick: float | None = None
        self._gaps: deque[float] = deque(maxlen=_GAP_TICKS)
        self._starved = 0.0
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
        self._collectors.run("backlog", self._backlog.look, self._pages, now)
        if self._unix.is_due(self._collectors.runs.get("unix")):
            self._collectors.run("unix", self._collect_unix)
        self._collectors.run("judge", self._judge, now)
        self._collectors.run("own_page", self._write_own_page, now)

    def _judge(self, now: float) -> None:
        outside = self._outside.facts(self._listeners.samples, now)
        self._faults.look(list(self._pages.pages.values()), now, outside)

    def _note_gap(self, now: float) -> None:
        if self._last_tick is not None:
            self._gaps.append(now - self._last_tick)
            if self._gaps[-1] > STARVED_SECONDS:
                self._starved += self._gaps[-1]
                self._backlog.restart_clock()
                self._input_backlog.restart_clock()
                self._tracked.restart_clocks(now)
                self._outside.restart_clocks()
        self._last_tick = now

    def _collect_listeners(self) -> tuple[ListenerSample, ...]:
        self._rows = read_listeners(self._namespace.diag)
        return self._listeners.observe(self._rows, self._owners)

    def _write_own_page(self, now: float) -> None:
        self._own_page.open(now)
        ticks = [page.reader["loop_tick_ns"] for page in self._pages.live("api")]
        queues: list[UnixSample | ConnectionSample] = [*self._unix.samples, *self._connections]
        wall_ns, listeners = self._clock.wall_ns(), self._listeners.samples
        self._own_page.write(kernel_sample(wall_ns, listeners, queues, self._faults.frozen, ticks))

    # --- every second

    def snapshot(self) -> Snapshot:
        """Collect everything and publish it as ``latest``; ``tick`` must have run before."""
        run = self._collectors.run
        run("pages", self._collect_pages)
        run("backlog", self._backlog.look, self._pages, self._clock.monotonic())
        run("target", self._collect_target)
        members = self._target.members
        dead = self._pages.dead_roles(Counter(member.label for member in members))
        run("processes", self._processes.collect, members, dead)
        self._note_processes()
        self._netns = run("netns", self._collect_netns) or {}
        if self._scan.is_due(self._clock.monotonic()):
            self._connections = run("connections", self._collect_connections) or ()
            apart = max(self._scan.seconds, self._scan.detail_seconds)
            self._outside.note_scan(self._connections, apart, self._clock.monotonic())
            self._connects = run("connects", self._collect_connects)
        self._bound = run("bound", self._collect_bound) or ()
        run("unix", self._collect_unix)
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
        self._outside.note_processes(self._processes.samples, self._holders(self._spec.port), self._pages.in_use)

    def _collect_connects(self) -> ConnectsSample:
        opens, now = self._netns.get("ActiveOpens"), self._clock.monotonic()
        return self._attempts.scan(self._namespace.diag, self._target.members, opens, now)

    def _collect_bound(self) -> tuple[BoundSample, ...]:
        if self._rows is None:
            return ()
        now, namespace = self._clock.monotonic(), self._namespace
        return self._vacant.collect(namespace.own, namespace.diag, self._listeners.roles, self._listening(), now)

    def _collect_unix(self) -> None:
        self._unix.collect(self._namespace.diag, self._roles.paths)

    def _collect_netns(self) -> dict[str, int]:
        for member in self._target.members:
            with suppress(FileNotFoundError, ProcessLookupError):  # gone since the table was read
                return read_namespace_counters(self._root, member.pid)
        if not self._namespace.is_ours:
            raise NotVisibleError("no process to read the counters of its namespace by")
        return read_namespace_counters(self._root, "self")

    def _collect_facts(self) -> Facts:
        roles = self._listeners.roles | self._listeners.ports
        pages = self._pages.pages.values()
        return self._details.collect(self._collectors, self._target.members, pages, roles, self._listening())

    def _listening(self) -> set[int]:
        """Ports of the namespace that somebody listens on."""
        return set() if self._rows is None else set(self._rows["port"].tolist())

    def _assemble(self) -> Snapshot:
        pages, samples, now = self._pages, self._pages.samples(), self._clock.monotonic()
        self._input_backlog.observe(samples, now)
        return Snapshot(
            wall_ns=self._clock.wall_ns(),
            monotonic=now,
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
            unix=self._unix.samples,
            netns=self._netns,
            pages=samples,
            page_totals=pages.totals(),
            page_histograms=pages.histograms(),
            input_unreceived=self._input_backlog.messages,
            input_unreceived_age=self._input_backlog.age,
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
            starved_seconds=self._starved,
            netlink_retries=self._namespace.retries,
            collectors=dict(self._collectors.runs),
            visible=dict(self._visibility.facts),
        )

    def _engine_up(self) -> bool:
        """By its processes; where those are hidden, by its listener or by the locks on its pages."""
        listening = any(sample.sockets and sample.role != OTHER for sample in self._listeners.samples)
        locked = any(page.owner is not None for page in self._pages.pages.values())
        return bool(self._processes.samples) or listening or locked
