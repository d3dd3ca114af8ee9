"""The engine's listeners: which rows are its own, and what happened to them over their life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.collectors import Visibility
from sidecar.kernel import procfs
from sidecar.roles import OTHER
from sidecar.snapshot import ListenerSample
from sidecar.target import Member
from sidecar.totals import RunningTotal, SampleHistogram

FILL_BOUNDS: Final = (0.0, 0.1, 0.25, 0.5, 0.8, 0.9, 1.0)
_OTHER_PORTS: Final = 8
"""Listeners without a role that are exported, the lowest ports first; it bounds the number of series."""
_SEARCH_SECONDS: Final = (1.0, 60.0)
_ADVICE: Final = (
    "cannot see which process owns the listeners: run the sidecar in the engine's pid namespace and as the engine's "
    "user, or as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; until then listeners are known by port only"
)


class ListenerOwners:
    """Which listening sockets the engine's processes hold, by the inodes behind their descriptors.

    Descriptors are read only when a listener or a process is new: it costs 3 µs for each.
    """

    def __init__(self, root: Path, visibility: Visibility) -> None:
        self._root = root
        self._visibility = visibility
        self._judged: set[int] = set()
        self._scanned: set[tuple[int, int]] = set()
        self._owner: tuple[int, int] | None = None
        self._search_at = 0.0
        self._search_delay = _SEARCH_SECONDS[0]
        self.owned: set[int] = set()
        self._holders: dict[int, set[int]] = {}
        """Process -> listening sockets that it holds."""
        self.foreign: set[int] = set()
        """Inodes that certainly belong to nobody of the engine."""

    def update(self, inodes: set[int], members: Sequence[Member]) -> None:
        """Judge the listeners of the namespace."""
        processes = {(member.pid, member.start_ticks) for member in members}
        new_inodes = inodes - self._judged
        to_read = processes if new_inodes else processes - self._scanned
        by_process, hidden = self._held([pid for pid, _ in to_read])
        self._note_holders(inodes, {member.pid for member in members}, by_process)
        held = {inode for own in by_process.values() for inode in own}
        self._judged, self._scanned = (set(), set()) if hidden else (inodes, processes)
        self.owned = (self.owned | held) & inodes
        self.foreign = set() if hidden or not processes else inodes - self.owned
        if hidden:
            self._visibility.hide("listener_owners", _ADVICE)
        elif processes:
            self._visibility.show("listener_owners")

    def _note_holders(self, inodes: set[int], alive: set[int], read: Mapping[int, set[int]]) -> None:
        kept = {pid: held & inodes for pid, held in self._holders.items() if pid in alive}
        self._holders = kept | {pid: held & inodes for pid, held in read.items()}

    def holders(self, inodes: set[int], parents: Mapping[int, int]) -> set[int]:
        """The engine's processes that serve these listening sockets, as far as can be seen.

        A supervisor holds the sockets that its workers inherited and serves none: parents of holders are left out.
        """
        found = {pid for pid, held in self._holders.items() if held & inodes}
        return found - {parents.get(pid) for pid in found}

    def find(self, inodes: set[int], pids: Sequence[int], now: float) -> int | None:
        """The process that holds one of these sockets, looked for ever more rarely while it is not to be found."""
        if self._owner is not None and self._owner[0] in inodes and self._owner[1] in pids:
            return self._owner[1]
        if not inodes or now < self._search_at:
            return None
        for pid in pids:
            held = inodes & self._held([pid])[0].get(pid, set())
            if held:
                self._owner, self._search_delay = (min(held), pid), _SEARCH_SECONDS[0]
                return pid
        self._search_at = now + self._search_delay
        self._search_delay = min(self._search_delay * 2, _SEARCH_SECONDS[1])
        self._visibility.hide("listener_owners", _ADVICE)
        return None

    def _held(self, pids: Iterable[int]) -> tuple[dict[int, set[int]], bool]:
        """Sockets of each process that could be read, and whether one could not."""
        held: dict[int, set[int]] = {}
        hidden = False
        for pid in pids:
            try:
                held[pid] = procfs.read_socket_inodes(self._root, pid)
            except PermissionError:
                hidden = True
            except (FileNotFoundError, ProcessLookupError):
                continue
        return held, hidden


class _Port:
    """One port over time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._drops = RunningTotal()
        self._fills = SampleHistogram(FILL_BOUNDS)
        self._seen: set[int] = set()
        self._changes = 0
        self._sockets = self._depth = self._limit = 0
        self._fill = 0.0

    def take(self, rows: npt.NDArray[Any]) -> None:
        """Take in the port's rows, which are other ones than before."""
        depths, limits, cookies = rows["depth"].tolist(), rows["limit"].tolist(), rows["cookie"].tolist()
        self._sockets, self._depth, self._limit = len(rows), sum(depths), sum(limits)
        self._fill = max((depth / max(limit, 1) for depth, limit in zip(depths, limits, strict=True)), default=0.0)
        self._drops.update(dict(zip(cookies, rows["drops"].tolist(), strict=True)))
        self._count_changes(set(cookies))

    def _count_changes(self, cookies: set[int]) -> None:
        if self._seen:
            self._changes += len(cookies - self._seen)
        self._seen = cookies or self._seen  # a port that listens again has changed, too

    def sample(self, role: str) -> ListenerSample:
        """Count one more sample, and tell all."""
        if self._sockets:
            self._fills.observe(self._fill)
        return ListenerSample(
            port=self._port,
            role=role,
            sockets=self._sockets,
            depth=self._depth,
            limit=self._limit,
            fill=self._fill,
            drops=int(self._drops.value),
            fills=self._fills.sample(),
            changes=self._changes,
        )


class ListenerTracker:
    """Follows the engine's listening ports from sample to sample."""

    def __init__(self, port: int | None) -> None:
        self._given = port
        self._ports: dict[int, _Port] = {}
        self._rows: npt.NDArray[Any] | None = None
        self._judged_by: tuple[set[int], set[int], dict[int, str]] | None = None
        self.roles: dict[int, str] = {}
        """Port -> role, as the pages or the command line tell."""
        self.samples: tuple[ListenerSample, ...] = ()
        self.set_roles({})

    def set_roles(self, roles: dict[int, str]) -> None:
        """Take the roles from the pages; a port given on the command line is ``http`` unless they say otherwise.

        The roles of an engine that is gone stay until the next one tells its own.
        """
        given = {} if self._given is None else {self._given: "http"}
        self.roles = given | (roles or self.roles)

    def observe(self, rows: npt.NDArray[Any], owners: ListenerOwners) -> tuple[ListenerSample, ...]:
        """Take in every LISTEN row of the namespace (a ``LISTENER`` array); the last one itself if nothing changed."""
        judged_by = owners.owned, owners.foreign, self.roles
        if rows is not self._rows or judged_by != self._judged_by:
            self._sort(rows[np.array(self._own(rows, owners), bool)])
            self._rows, self._judged_by = rows, judged_by
        return tuple(tracked.sample(self.roles.get(port, OTHER)) for port, tracked in self._ports.items())

    def _sort(self, own: npt.NDArray[Any]) -> None:
        listening = sorted(set(own["port"].tolist()))
        others = [port for port in listening if port not in self.roles][:_OTHER_PORTS]
        followed = {*others, *(port for port in (*listening, *self._ports) if port in self.roles)}
        self._ports = {port: self._ports.get(port) or _Port(port) for port in sorted(followed)}
        for port, tracked in self._ports.items():
            tracked.take(own[own["port"] == port])

    def _own(self, rows: npt.NDArray[Any], owners: ListenerOwners) -> list[bool]:
        """Which rows are the engine's: held by its processes, or on its ports and not known to be somebody else's."""
        return [
            inode in owners.owned or (port in self.roles and inode not in owners.foreign)
            for inode, port in zip(rows["inode"].tolist(), rows["port"].tolist(), strict=True)
        ]

    @property
    def ports(self) -> dict[int, str]:
        """Port -> role of every listener followed."""
        return {sample.port: sample.role for sample in self.samples}
