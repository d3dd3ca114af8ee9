"""Which processes are the engine: named by port, pid or command line, and found again after every restart."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.process_table import Process, ProcessTable

LABELS: Final = ("api", "core", "exporter", "engine", "worker")
"""Every value of the ``process`` label."""
_LABEL_OF_MODULE: Final = {"api": "api", "core": "core", "span_exporter": "exporter"}
_LABEL_OF_TITLE: Final = {"VLLM::EngineCor": "core"}  # titles are cut to 15 bytes where they come from comm
_OWN_MODULE: Final = "sidecar"
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "busybox"})


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the operator called the engine, and one way to find it."""

    name: str
    port: int | None = None
    pid: int | None = None
    pattern: re.Pattern[str] | None = None


def parse_engine(text: str) -> EngineSpec:
    """Parse ``NAME=port:8000``, ``NAME=pid:123`` or ``NAME=cmdline:REGEX``.

    Raises:
        ValueError: none of these; the message is one sentence.
    """
    name, _, rest = text.partition("=")
    kind, _, value = rest.partition(":")
    if not name or not value or kind not in ("port", "pid", "cmdline"):
        raise ValueError(f"--engine takes NAME=port:8000, NAME=pid:123 or NAME=cmdline:REGEX, not {text!r}")
    if kind == "cmdline":
        try:
            return EngineSpec(name, pattern=re.compile(value))
        except re.error as error:
            raise ValueError(f"--engine {name}: {value!r} is not a regular expression: {error}") from error
    highest = 65535 if kind == "port" else 2**22
    if not (value.isascii() and value.isdecimal() and len(value) < 8 and 0 < int(value) <= highest):
        raise ValueError(f"--engine {name}: {kind} is a number from 1 to {highest}, not {value!r}")
    return EngineSpec(name, **{kind: int(value)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the engine; a pid that was used again has other start ticks."""

    pid: int
    start_ticks: int
    label: str


class Target:
    """The set of the engine's processes."""

    def __init__(self, spec: EngineSpec, root: Path) -> None:
        self.spec = spec
        self.table = ProcessTable(root)
        self.members: tuple[Member, ...] = ()
        """The oldest first: what the namespace is entered by should not be a child that is gone in a moment."""
        self.found = 0
        """Engine processes found so far that were the root of a tree."""
        self._pinned_ticks: int | None = None
        self._roots: set[tuple[int, int]] = set()
        self._sidecar: set[int] = set()

    def refresh(self) -> None:
        """Bring the table of processes up to date.

        Raises:
            OSError: /proc cannot be listed.
        """
        self.table.refresh(reread=[member.pid for member in self.members])

    def resolve(self, page_roles: Mapping[int, str], listener_owner: int | None) -> tuple[Member, ...]:
        """Find the engine's processes in the table; call ``refresh`` before.

        Args:
            page_roles: pid of each live page's owner -> role of the page.
            listener_owner: the process that owns the listener on the engine's port, where that is known.
        """
        self._sidecar = {os.getpid(), *(process.pid for process in self.table.ancestors(os.getpid()))}
        roots = self._keep_roots({self._topmost(process) for process in self._matches(listener_owner)})
        kept = {member.pid for member in self.members if self._lives(member.pid, member.start_ticks)}
        pids = self.table.descendants(roots | kept | set(page_roles))
        alive = [self.table.processes[pid] for pid in pids if self.table.processes[pid].alive]
        alive.sort(key=lambda process: (process.start_ticks, process.pid))
        self.members = tuple(
            Member(process.pid, process.start_ticks, self._label(process, page_roles, roots)) for process in alive
        )
        return self.members

    def _matches(self, listener_owner: int | None) -> Iterator[Process]:
        if self.spec.pattern is not None:
            yield from (process for process in self.table.processes.values() if self._matches_pattern(process))
            return
        process = self.table.processes.get(self.spec.pid or listener_owner or 0)
        if process is None or not process.alive:
            return
        if self.spec.pid is not None:
            self._pinned_ticks = self._pinned_ticks or process.start_ticks
            if process.start_ticks != self._pinned_ticks:
                return
        yield process

    def _matches_pattern(self, process: Process) -> bool:
        assert self.spec.pattern is not None
        if process.pid in self._sidecar or process.program == _OWN_MODULE or not process.alive:
            return False
        return self.spec.pattern.search(" ".join(process.command)) is not None

    def _topmost(self, process: Process) -> int:
        """The highest ancestor in one line that runs the same program, such as the engine's launcher."""
        top = process
        for parent in self.table.ancestors(process.pid):
            if parent.pid in self._sidecar or not self._same_program(parent, process.program):
                break
            top = parent
        return top.pid

    @staticmethod
    def _same_program(parent: Process, program: str) -> bool:
        if parent.title in _SHELLS:
            return re.search(rf"\b{re.escape(program)}\b", " ".join(parent.command[1:])) is not None
        return bool(program) and parent.program == program

    def _keep_roots(self, matched: set[int]) -> set[int]:
        """Add the matches to the roots that still live: an engine that closed its listener is still the engine."""
        current = {(pid, self.table.processes[pid].start_ticks) for pid in matched}
        self.found += len(current - self._roots)
        self._roots = current | {root for root in self._roots if self._lives(*root)}
        return {pid for pid, _ in self._roots}

    def _lives(self, pid: int, start_ticks: int) -> bool:
        process = self.table.processes.get(pid)
        return process is not None and process.alive and process.start_ticks == start_ticks

    def _label(self, process: Process, page_roles: Mapping[int, str], roots: set[int]) -> str:
        if page_roles.get(process.pid) in LABELS:
            return page_roles[process.pid]
        known = _LABEL_OF_MODULE.get(process.module.rpartition(".")[2]) or _LABEL_OF_TITLE.get(process.title[:15])
        if known:
            return known
        return "engine" if process.pid in roots else "worker"
