"""The descriptors of the engine's processes by kind, read so that a process with 20 000 of them costs little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sidecar.collectors import Visibility
from sidecar.facts import FdSample
from sidecar.kernel.fdkinds import DescriptorTable
from sidecar.pace import Pace
from sidecar.target import Member

_BUDGET: Final = 4000
"""Links of new descriptors read in one pass over all processes: 3 µs each."""
_AGAIN: Final = 50
"""Links of known descriptors read again in one pass over one process."""
_LONGEST_SECONDS: Final = 5.0
_SHARE_OF_A_CORE: Final = 0.0005
_ADVICE: Final = (
    "cannot see what the engine's descriptors are: run the sidecar as the engine's user, or as root with "
    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
)


class FdTracker:
    """Follows the descriptors of every process from pass to pass."""

    def __init__(self, root: Path, visibility: Visibility, thread_cpu: Callable[[], float]) -> None:
        self._root = root
        self._visibility = visibility
        self._thread_cpu = thread_cpu
        self._pace = Pace(_SHARE_OF_A_CORE, _LONGEST_SECONDS)
        self._tables: dict[tuple[int, int], DescriptorTable] = {}
        self.samples: tuple[FdSample, ...] = ()

    def collect(self, members: Sequence[Member], now: float) -> None:
        """Read every process once, if a pass is due.

        Raises:
            OSError: /proc is not what it should be.
        """
        keys = {(member.pid, member.start_ticks) for member in members}
        if not self._pace.is_due(now) and keys == self._tables.keys():
            return
        started = self._thread_cpu()
        self._tables = {key: self._tables.get(key) or DescriptorTable() for key in keys}
        budget = _BUDGET
        samples = []
        for member in members:
            table = self._tables[member.pid, member.start_ticks]
            read = self._read(member, table, budget)
            if read is not None:
                budget = max(budget - read, 0)
                samples.append(FdSample(member.label, member.pid, dict(table.counts), table.unread))
        self.samples = tuple(samples)
        self._pace.note(now, self._thread_cpu() - started)

    def _read(self, member: Member, table: DescriptorTable, budget: int) -> int | None:
        try:
            read = table.update(self._root, member.pid, budget, _AGAIN)
        except PermissionError:
            self._visibility.hide("fd_kinds", _ADVICE)
            return None
        except (FileNotFoundError, ProcessLookupError):
            return None
        self._visibility.show("fd_kinds")
        return read
