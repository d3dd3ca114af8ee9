"""State, CPU, memory and descriptors of the engine's processes, by label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sidecar.collectors import Visibility
from sidecar.kernel import procfs
from sidecar.kernel.memory_limit import read_memory_limit
from sidecar.snapshot import OwnUse, ProcessSample
from sidecar.target import Member
from sidecar.totals import RunningTotal

_ADVICE = (
    "cannot count the engine's open descriptors: run the sidecar as the engine's user, or as root with "
    "CAP_DAC_READ_SEARCH (Linux 6.2 and later need neither)"
)


_LIMITS_EVERY: Final = 15
"""Passes between two looks at the limits of memory, which hardly ever change."""


class ProcessTracker:
    """Follows the engine's processes from sample to sample."""

    def __init__(self, root: Path, visibility: Visibility) -> None:
        self._root = root
        self._visibility = visibility
        self._by_size = procfs.sizes_count_descriptors(root)
        self._cpu: dict[str, RunningTotal] = {}
        self._known: set[tuple[int, int]] = set()
        self._memory_limits: dict[int, int | None] = {}
        self._passes = 0
        self.starts: dict[str, int] = {}
        """Label -> processes found so far."""
        self._boot_time: int | None = None
        self.samples: tuple[ProcessSample, ...] = ()
        self.up: dict[str, bool] = {}

    def collect(self, members: Sequence[Member], dead_labels: Iterable[str]) -> None:
        """Read every process.

        Args:
            members: the engine's processes.
            dead_labels: labels of which a process is known to have died or left, whatever others of them live.

        Raises:
            OSError, ProcfsError: /proc is not what it should be.
        """
        if self._boot_time is None:
            self._boot_time = procfs.read_boot_time(self._root)
        if self._passes % _LIMITS_EVERY == 0:
            self._memory_limits = {}
        self._passes += 1
        read = (self._read(member, self._boot_time) for member in members)
        self.samples = tuple(sample for sample in read if sample is not None)
        alive = {sample.label for sample in self.samples}
        gone = (self.up.keys() | {member.label for member in members}) - alive
        self.up = dict.fromkeys(sorted(alive | gone | set(dead_labels)), False)
        self.up |= dict.fromkeys(alive - set(dead_labels), True)
        self._count_starts()
        for label in alive:
            self._cpu.setdefault(label, RunningTotal()).update(
                {
                    (sample.pid, sample.start_ticks): sample.cpu_seconds
                    for sample in self.samples
                    if sample.label == label
                }
            )

    def _count_starts(self) -> None:
        current = {(sample.pid, sample.start_ticks): sample.label for sample in self.samples}
        for key, label in current.items():
            if key not in self._known:
                self.starts[label] = self.starts.get(label, 0) + 1
        self._known = set(current)

    @property
    def cpu_seconds(self) -> dict[str, float]:
        """Label -> CPU seconds of all processes that ever had it."""
        return {label: total.value for label, total in self._cpu.items()}

    def read_own(self) -> OwnUse:
        """CPU time, memory and descriptors of the sidecar.

        Raises:
            OSError, ProcfsError: /proc is not what it should be.
        """
        stat = procfs.read_stat(self._root, "self")
        descriptors = procfs.read_descriptor_count(self._root, "self", self._by_size)
        return OwnUse(stat.cpu_seconds, stat.resident_bytes, descriptors)

    def _read(self, member: Member, boot_time: int) -> ProcessSample | None:
        try:
            stat = procfs.read_stat(self._root, member.pid)
            max_fds = procfs.read_open_files_limit(self._root, member.pid)
        except (FileNotFoundError, ProcessLookupError):
            return None
        if stat.start_ticks != member.start_ticks or stat.state == "zombie":
            return None
        return ProcessSample(
            label=member.label,
            pid=member.pid,
            start_ticks=stat.start_ticks,
            state=stat.state,
            cpu_seconds=stat.cpu_seconds,
            resident_bytes=stat.resident_bytes,
            threads=stat.threads,
            started=boot_time + stat.start_ticks / procfs.CLOCK_TICKS,
            open_fds=self._count_descriptors(member.pid),
            max_fds=max_fds,
            memory_limit_bytes=self._memory_limit(member.pid),
        )

    def _memory_limit(self, pid: int) -> int | None:
        if pid not in self._memory_limits:
            self._memory_limits[pid] = read_memory_limit(self._root, pid)
        return self._memory_limits[pid]

    def _count_descriptors(self, pid: int) -> int | None:
        try:
            count = procfs.read_descriptor_count(self._root, pid, self._by_size)
        except PermissionError:
            self._visibility.hide("open_fds", _ADVICE)
            return None
        except (FileNotFoundError, ProcessLookupError):
            return None
        self._visibility.show("open_fds")
        return count
