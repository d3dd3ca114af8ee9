"""The processes of the pid namespace, read so rarely that watching an absent engine costs next to nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.kernel import procfs

_TURNS: Final = 15
"""Refreshes in which every process is read again once: it may exec another program, or get another parent."""
_YOUNG: Final = 3
"""Refreshes in which a new process is read again each time: it was perhaps seen between fork and exec."""
_FLAGS_WITH_VALUE: Final = ("-X", "-W", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class Process:
    """One process as the table knows it."""

    pid: int
    start_ticks: int
    parent: int
    command: tuple[str, ...]
    alive: bool
    """False for a zombie."""

    @property
    def module(self) -> str:
        """The program's name: ``a.b`` of ``python -m a.b``, else the script's or the executable's file name."""
        words = iter(self.command[1:])
        for word in words if "python" in self.title else ():
            if word == "-m":
                return next(words, "")
            if word in _FLAGS_WITH_VALUE:
                next(words, "")
            elif not word.startswith("-"):
                return Path(word).name
        return self.title

    @property
    def title(self) -> str:
        """The file name of the executable, or the title that the process gave itself."""
        return self.command[0].rpartition("/")[2] if self.command else ""

    @property
    def program(self) -> str:
        """The first part of the module's name."""
        return self.module.partition(".")[0]


class ProcessTable:
    """Pid -> process. A refresh lists /proc; it reads new entries, and a part of the others in turn."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._refreshes = 0
        self._first_seen: dict[int, int] = {}
        """Pid -> refresh."""
        self.processes: dict[int, Process] = {}

    def refresh(self, reread: Iterable[int] = ()) -> None:
        """Bring the table up to date, the ``reread`` entries in any case.

        Raises:
            OSError: /proc cannot be listed.
        """
        self._refreshes += 1
        stale = {*reread, *(pid for pid in self.processes if self._is_due(pid))}
        known = self.processes
        self.processes = {}
        for pid in procfs.read_pids(self._root):
            process = None if pid in stale else known.get(pid)
            process = process or read_process(self._root, pid)
            if process is not None:
                self.processes[pid] = process
        self._first_seen = {pid: self._first_seen.get(pid, self._refreshes) for pid in self.processes}

    def _is_due(self, pid: int) -> bool:
        is_young = self._refreshes - self._first_seen[pid] <= _YOUNG
        return is_young or pid % _TURNS == self._refreshes % _TURNS

    def descendants(self, roots: Iterable[int]) -> set[int]:
        """The roots that exist and everything below them, this sidecar and its children left out."""
        children: dict[int, list[int]] = {}
        for pid, process in self.processes.items():
            children.setdefault(process.parent, []).append(pid)
        found: set[int] = set()
        pending = [pid for pid in roots if pid in self.processes]
        while pending:
            pid = pending.pop()
            if pid not in found and pid != os.getpid():
                found.add(pid)
                pending += children.get(pid, [])
        return found

    def ancestors(self, pid: int) -> Iterator[Process]:
        """The parents of a process, nearest first."""
        seen = {pid}
        process = self.processes.get(pid)
        while process is not None and process.parent not in seen:
            seen.add(process.parent)
            process = self.processes.get(process.parent)
            if process is not None:
                yield process


def read_process(root: Path, pid: int) -> Process | None:
    """One process; None when it is gone or not ours to see."""
    try:
        stat = procfs.read_stat(root, pid)
        command = procfs.read_cmdline(root, pid)
    except (OSError, procfs.ProcfsError):
        return None
    return Process(pid, stat.start_ticks, stat.parent, command, stat.state != "zombie")
