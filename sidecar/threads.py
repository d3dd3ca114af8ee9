"""The threads of the engine's processes: the ones on its pages every second, all of them every few seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.facts import IoThreadSample, SwitchesSample, ThreadsSample
from sidecar.kernel import procinfo
from sidecar.kernel.procinfo import Thread
from sidecar.target import Member
from sidecar.totals import RunningTotal

SLOTS: Final = {
    "main": "main_thread_id",
    "input": "input_thread_id",
    "output": "output_thread_id",
    "receiver": "receiver_thread_id",
}
"""Kind of thread -> slot of the page with its native id."""
_MOST_THREADS: Final = 200
"""Processes with more are left out of the scan over all threads: 15 µs each."""
_SCAN_SECONDS: Final = 5.0
_GONE: Final = (FileNotFoundError, ProcessLookupError)
ThreadCpu = dict[tuple[int, int], float]
"""Thread id and start ticks -> CPU seconds."""


@dataclass(frozen=True, slots=True)
class PublishedThreads:
    """The thread ids on one page of a live process."""

    pid: int
    pid_namespace: int
    """Inode of the pid namespace that the ids are of."""
    ids: dict[str, int]
    """Kind -> native id, for the threads that have begun."""


class ThreadTracker:
    """Follows threads from second to second."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._scan_at = 0.0
        self._last_scan: dict[tuple[int, int], tuple[float, ThreadCpu]] = {}
        self._outer: dict[tuple[int, int], int] = {}
        self._cpu: dict[tuple[str, str], RunningTotal] = {}
        self._switches: dict[str, tuple[RunningTotal, RunningTotal]] = {}
        self.scanned: tuple[ThreadsSample, ...] = ()
        self.published: tuple[IoThreadSample, ...] = ()

    def collect(self, members: Sequence[Member], pages: Iterable[PublishedThreads], now: float) -> None:
        """Read the published threads, and all threads when that is due.

        Raises:
            OSError, ProcfsError: /proc is not what it should be.
        """
        by_pid = {member.pid: member for member in members}
        self.published = tuple(
            self._look_at(by_pid[page.pid], kind, thread_id, page)
            for page in pages
            if page.pid in by_pid
            for kind, thread_id in page.ids.items()
        )
        for member in members:
            self._count_switches(member)
        if now >= self._scan_at:
            self._scan_at = now + _SCAN_SECONDS
            self._scan(members, now)

    @property
    def cpu_seconds(self) -> dict[str, dict[str, float]]:
        """Label -> kind of published thread -> CPU seconds of all that there were."""
        found: dict[str, dict[str, float]] = {}
        for (label, kind), total in self._cpu.items():
            found.setdefault(label, {})[kind] = total.value
        return found

    @property
    def switches(self) -> tuple[SwitchesSample, ...]:
        """Context switches by label."""
        return tuple(
            SwitchesSample(label, int(voluntary.value), int(involuntary.value))
            for label, (voluntary, involuntary) in self._switches.items()
        )

    def _look_at(self, member: Member, kind: str, inner_id: int, page: PublishedThreads) -> IoThreadSample:
        thread_id = self._translate(member, inner_id, page.pid_namespace)
        thread = procinfo.read_thread(self._root, member.pid, thread_id) if thread_id else None
        if thread is not None:
            key = (member.pid, member.start_ticks, thread.thread_id, thread.start_ticks)
            self._cpu.setdefault((member.label, kind), RunningTotal()).update({key: thread.cpu_seconds})
        return IoThreadSample(member.label, kind, member.pid, thread is not None)

    def _translate(self, member: Member, inner_id: int, pid_namespace: int) -> int | None:
        """The id in our pid namespace of a thread that is or was there; None for one never seen alive."""
        if pid_namespace == _own_pid_namespace():
            return inner_id
        known = self._outer.get((member.pid, inner_id))
        if known is None:
            ids = procinfo.read_thread_ids(self._root, member.pid)
            inner = procinfo.read_inner_thread_ids(self._root, member.pid, ids)
            self._outer |= {(member.pid, one): outer for one, outer in inner.items()}
            known = self._outer.setdefault((member.pid, inner_id), 0)
        return known or None

    def _count_switches(self, member: Member) -> None:
        try:
            status = procinfo.read_status(self._root, member.pid)
        except _GONE:
            return
        voluntary, involuntary = self._switches.setdefault(member.label, (RunningTotal(), RunningTotal()))
        key = (member.pid, member.start_ticks)
        voluntary.update({key: status.voluntary_switches})
        involuntary.update({key: status.involuntary_switches})

    def _scan(self, members: Sequence[Member], now: float) -> None:
        found = [self._scan_process(member, now) for member in members]
        self.scanned = tuple(sample for sample in found if sample is not None)
        current = {(member.pid, member.start_ticks) for member in members}
        self._last_scan = {key: scan for key, scan in self._last_scan.items() if key in current}
        pids = {member.pid for member in members}
        self._outer = {key: outer for key, outer in self._outer.items() if key[0] in pids}

    def _scan_process(self, member: Member, now: float) -> ThreadsSample | None:
        threads = self._read_threads(member.pid)
        if not threads:
            return None
        cpu = {(thread.thread_id, thread.start_ticks): thread.cpu_seconds for thread in threads}
        before = self._last_scan.get((member.pid, member.start_ticks))
        self._last_scan[member.pid, member.start_ticks] = now, cpu
        states = [thread.state for thread in threads]
        ratio, name = (None, "") if before is None else _busiest(threads, before[1], now - before[0])
        return ThreadsSample(member.label, member.pid, states.count("stopped"), states.count("disk_sleep"), ratio, name)

    def _read_threads(self, pid: int) -> list[Thread]:
        try:
            ids = procinfo.read_thread_ids(self._root, pid)
        except _GONE:
            return []
        if len(ids) > _MOST_THREADS:
            return []
        read = (procinfo.read_thread(self._root, pid, thread_id) for thread_id in ids)
        return [thread for thread in read if thread is not None]


def _busiest(threads: Iterable[Thread], before: ThreadCpu, elapsed: float) -> tuple[float | None, str]:
    """Share of a core and name of the thread that took most CPU time; a new thread counts from 0."""
    used = [
        (thread.cpu_seconds - before.get((thread.thread_id, thread.start_ticks), 0.0), thread.name)
        for thread in threads
    ]
    seconds, name = max(used)
    return (seconds / elapsed, name) if elapsed > 0 else (None, "")


def _own_pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
