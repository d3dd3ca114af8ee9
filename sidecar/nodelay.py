"""Whether the engine's own TCP sockets send at once, read back once for each role when it has a connection.

Without TCP_NODELAY, Nagle's algorithm and delayed acknowledgements add 40 ms to small messages. libzmq sets it itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar.kernel.pidfd import find_descriptors, read_nodelay
from sidecar.target import Member

_LOOK_SECONDS: Final = 5.0


class NodelayReader:
    """Looks at the sockets of each role until one could be read, for each set of processes anew."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._members: tuple[Member, ...] = ()
        self._look_at = 0.0
        self.found: dict[str, bool] = {}
        """Role -> whether all of its sockets that were read have TCP_NODELAY."""

    def look(self, members: Sequence[Member], inodes: Mapping[str, Collection[int]], now: float) -> None:
        """Look at some sockets (role -> their inodes) of roles that are not known yet; not every second."""
        if tuple(members) != self._members:
            self._members, self.found = tuple(members), {}
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        for role, wanted in inodes.items():
            if role not in self.found:
                options = [option for member in members for option in self._read(member.pid, wanted)]
                if options:
                    self.found[role] = all(options)

    def _read(self, pid: int, inodes: Collection[int]) -> list[bool]:
        options = []
        with suppress(OSError):  # gone, or not ours to see, which other collectors tell
            for descriptor in find_descriptors(self._root, pid, inodes):
                options.append(read_nodelay(pid, descriptor))  # noqa: PERF401 - keeps those read before a failure
        return options
