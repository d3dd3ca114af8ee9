"""The collectors of ``Facts``: what is slower, or less urgent, than listeners, connections and pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sidecar.clock import Clock
from sidecar.collectors import Collectors, Visibility
from sidecar.environment import EnvironmentTracker
from sidecar.facts import Facts
from sidecar.fds import FdTracker
from sidecar.gpu import GpuReader, GpuTracker
from sidecar.kernel.interfaces import Interfaces, Pair, read_interfaces
from sidecar.kernel.unix_diag import read_bound_files
from sidecar.namespaces import NamespaceFollower
from sidecar.network import NetworkTracker
from sidecar.nodelay import NodelayReader
from sidecar.pages import Page
from sidecar.stale_files import count_stale_files
from sidecar.target import Member
from sidecar.threads import SLOTS, PublishedThreads, ThreadTracker

_STALE_SECONDS: Final = 5.0
ReadInterfaces = Callable[[Sequence[Pair]], Interfaces]
Fields = dict[str, Any]
"""Fields of ``Facts``; those of a collector that failed or may not see are missing."""


class Details:
    """Runs the collectors once a second; each of them decides what is due."""

    def __init__(
        self,
        root: Path,
        runtime_dir: Path,
        visibility: Visibility,
        namespace: NamespaceFollower,
        clock: Clock,
        read_links: ReadInterfaces = read_interfaces,
    ) -> None:
        self._runtime_dir = runtime_dir
        self._namespace = namespace
        self._clock = clock
        self._fds = FdTracker(root, visibility, clock.thread_cpu)
        self._threads = ThreadTracker(root)
        self._environment = EnvironmentTracker(root, visibility)
        self._network = NetworkTracker(root, namespace, clock.thread_cpu, read_links)
        self._stale: int | None = None
        self._stale_at = 0.0
        self._nodelay = NodelayReader(root)
        self._gpu_reader = GpuReader()
        self._gpu = GpuTracker(self._gpu_reader.latest)

    def start(self) -> None:
        """Begin to read GPUs in the background."""
        self._gpu_reader.start()

    def stop(self) -> None:
        """Stop that."""
        self._gpu_reader.stop()

    def collect(
        self,
        collectors: Collectors,
        members: Sequence[Member],
        pages: Collection[Page],
        roles: Mapping[int, str],
        listening: Collection[int],
    ) -> Facts:
        """Everything as it is now.

        Args:
            collectors: runs each part, so that one failure costs its own part only.
            members: the engine's processes.
            pages: their pages, dead ones among them.
            roles: port -> role, of the ports that the engine listens on or should.
            listening: all ports of the namespace that somebody listens on.
        """
        run = collectors.run
        fields: Fields = run("fds", self._collect_fds, members) or {}
        fields |= run("threads", self._collect_threads, members, pages) or {}
        fields |= run("network", self._collect_network, members, roles, listening) or {}
        if self._gpu_reader.latest():
            fields |= run("gpu", self._collect_gpu, members) or {}
        return Facts(**fields)

    def _collect_fds(self, members: Sequence[Member]) -> Fields:
        self._fds.collect(members, self._clock.monotonic())
        return {"fds": self._fds.samples, "proxy_variables": self._environment.collect(members)}

    def _collect_threads(self, members: Sequence[Member], pages: Collection[Page]) -> Fields:
        threads = self._threads
        threads.collect(members, published_threads(pages), self._clock.monotonic())
        return {
            "threads": threads.scanned,
            "io_threads": threads.published,
            "thread_cpu_seconds": threads.cpu_seconds,
            "switches": threads.switches,
        }

    def _collect_network(
        self, members: Sequence[Member], roles: Mapping[int, str], listening: Collection[int]
    ) -> Fields:
        network, now = self._network, self._clock.monotonic()
        network.collect(members, roles, now)
        network.collect_ephemeral(listening, now)
        self._nodelay.look(members, network.socket_inodes, now)
        count, limit = network.conntrack or (None, None)
        ports = network.settings.ports
        return {
            "sysctls": network.settings.sysctls,
            "conntrack": count,
            "conntrack_limit": limit,
            "ephemeral": network.ephemeral,
            "service_ports_in_range": {} if ports is None else {port: port in ports for port in roles},
            "interfaces": network.interfaces,
            "fastest_interface": network.fastest,
            "nodelay": dict(self._nodelay.found),
            "stale_ipc_files": self._count_stale_files(now),
        }

    def _count_stale_files(self, now: float) -> int | None:
        if now < self._stale_at:
            return self._stale
        self._stale_at = now + _STALE_SECONDS
        self._stale = self._read_stale_files()
        return self._stale

    def _read_stale_files(self) -> int | None:
        try:
            return count_stale_files(self._runtime_dir, read_bound_files(self._namespace.diag))
        except (FileNotFoundError, PermissionError):  # which the collector of pages tells about
            return None

    def _collect_gpu(self, members: Sequence[Member]) -> Fields:
        return {"gpu": self._gpu.collect(members)}


def published_threads(pages: Collection[Page]) -> Iterator[PublishedThreads]:
    """The thread ids on the pages of processes that live in sight; a slot that is 0 has not begun."""
    for page in pages:
        if page.owner:
            ids = {kind: page.reader[slot] for kind, slot in SLOTS.items() if slot in page.layout.slot_index}
            begun = {kind: value for kind, value in ids.items() if value}
            yield PublishedThreads(page.owner, page.header.pid_namespace, begun)
