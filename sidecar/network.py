"""What only the engine's network namespace itself tells: settings, conntrack, interfaces, ephemeral ports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.collectors import NotVisibleError
from sidecar.ephemeral import read_worst_destination
from sidecar.facts import EphemeralSample, InterfaceSample
from sidecar.kernel.interfaces import Interfaces, Pair, read_interfaces
from sidecar.kernel.netlink import DiagSocket
from sidecar.kernel.sysctl import PortRange, read_conntrack, read_port_range, read_sysctls
from sidecar.namespaces import NamespaceFollower
from sidecar.pace import Pace
from sidecar.role_paths import fastest, judge_interfaces, read_role_paths
from sidecar.target import Member

_MESSAGE_ROLES: Final = ("input", "output", "worker")
_LOOK_SECONDS: Final = 5.0
_SETTINGS_SECONDS: Final = 15.0
_LONGEST_SECONDS: Final = 5.0
_SHARE_OF_A_CORE: Final = 0.0004
"""For each of the two dumps here: even one that finds nothing walks the kernel's whole table (1 ms)."""
_LONGEST_PATHS_SECONDS: Final = 60.0


@dataclass(slots=True)
class Settings:
    """What was read in the namespace when its settings were read last."""

    sysctls: dict[str, int] = field(default_factory=dict)
    ports: PortRange | None = None


class NetworkTracker:
    """Reads the namespace every few seconds, in one visit of a helper thread."""

    def __init__(
        self,
        root: Path,
        namespace: NamespaceFollower,
        thread_cpu: Callable[[], float],
        read_links: Callable[[Sequence[Pair]], Interfaces] = read_interfaces,
    ) -> None:
        self._root = root
        self._namespace = namespace
        self._thread_cpu = thread_cpu
        self._read_links = read_links
        self._look_at = self._settings_at = 0.0
        self._paths_pace = Pace(_SHARE_OF_A_CORE, _LONGEST_PATHS_SECONDS)
        self._pairs: dict[str, set[Pair]] = {}
        self._visited: tuple[Member, ...] = ()
        self.socket_inodes: dict[str, set[int]] = {}
        """Role -> a few sockets of connections between the engine's processes."""
        self.ephemeral_pace = Pace(_SHARE_OF_A_CORE, _LONGEST_SECONDS)
        self.settings = Settings()
        self.conntrack: tuple[int, int] | None = None
        self.interfaces: tuple[InterfaceSample, ...] = ()
        self.fastest: int | None = None
        self.ephemeral: EphemeralSample | None = None

    def collect(self, members: Sequence[Member], roles: Mapping[int, str], now: float) -> None:
        """Visit the namespace if that is due; at once when the engine is another one.

        Raises:
            NotVisibleError: we may not enter it.
            OSError, NetlinkError: the kernel refused.
        """
        try:
            self._collect(tuple(members[:1]), roles, now)
        except NotVisibleError:
            self.forget()
            raise

    def _collect(self, first: tuple[Member, ...], roles: Mapping[int, str], now: float) -> None:
        if first != self._visited:
            self.forget()
            self._visited = first
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        self._scan_paths(self._namespace.diag, roles, now)
        wanted = sorted({pair for own in self._pairs.values() for pair in own})
        seen = self._namespace.inside(first, lambda: self._visit(wanted, now))
        self.interfaces = judge_interfaces(self._pairs, seen)
        self.fastest = fastest(seen)

    def forget(self) -> None:
        """The namespace is another one, or hidden now."""
        self._look_at = self._settings_at = 0.0
        self._pairs, self._visited, self.socket_inodes = {}, (), {}
        self._paths_pace = Pace(_SHARE_OF_A_CORE, _LONGEST_PATHS_SECONDS)
        self.settings, self.conntrack, self.ephemeral = Settings(), None, None
        self.interfaces, self.fastest = (), None

    def collect_ephemeral(self, listening: Collection[int], now: float) -> None:
        """Count the local ports per destination if that is due.

        Raises:
            NotVisibleError: we may not enter the namespace.
            NetlinkError: a dump failed.
        """
        ports = self.settings.ports
        if ports is None:
            self.ephemeral = None
        elif self.ephemeral_pace.is_due(now):
            started = self._thread_cpu()
            self.ephemeral = read_worst_destination(self._namespace.diag, ports, listening)
            self.ephemeral_pace.note(now, self._thread_cpu() - started)

    def _scan_paths(self, diag: DiagSocket, roles: Mapping[int, str], now: float) -> None:
        if self._paths_pace.is_due(now):
            started = self._thread_cpu()
            found = read_role_paths(diag, roles)
            self._pairs = found.pairs
            self.socket_inodes = {role: own for role, own in found.inodes.items() if role in _MESSAGE_ROLES}
            self._paths_pace.note(now, self._thread_cpu() - started)

    def _visit(self, pairs: Sequence[Pair], now: float) -> Interfaces:
        """What is read inside the namespace; runs in the helper thread."""
        if now >= self._settings_at:
            self.settings = Settings(read_sysctls(self._root), read_port_range(self._root))
            self._settings_at = now + _SETTINGS_SECONDS
        self.conntrack = read_conntrack(self._root)
        return self._read_links(pairs)
