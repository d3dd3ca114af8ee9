"""What waits in the unix sockets of each role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from sidecar.kernel.netlink import DiagSocket
from sidecar.kernel.unix_diag import by_role, read_unix_queues
from sidecar.snapshot import CollectorRun, UnixSample

_CHEAP_SECONDS: Final = 1e-3
_TICKS: Final = 5


class UnixQueues:
    """Dumps them with every snapshot, and in between where that is cheap."""

    def __init__(self) -> None:
        self._ticks = 0
        self.samples: tuple[UnixSample, ...] = ()

    def is_due(self, last: CollectorRun | None) -> bool:
        """Whether to dump in this tick: twice a second, unless their names made the last dump slow."""
        self._ticks += 1
        return self._ticks % _TICKS == 0 and last is not None and last.success and last.seconds < _CHEAP_SECONDS

    def collect(self, diag: DiagSocket, paths: Mapping[bytes, str]) -> None:
        """Dump the sockets of these paths (path -> role).

        Raises:
            NetlinkError: the dump failed.
        """
        self.samples = ()
        queues = by_role(paths.values(), read_unix_queues(diag, list(paths)))
        self.samples = tuple(UnixSample(role, **asdict(found)) for role, found in queues.items())
