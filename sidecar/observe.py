"""One look at the engine for the judge: its pages, and what /proc says about their owners right now.

Costs about 30 µs a process, so that it can be done ten times a second.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from sidecar.judge import RULES, Judge, Observation, ProcessFacts
from sidecar.kernel.procfs import StatFiles
from sidecar.outside import OutsideFacts
from sidecar.outside_rules import OUTSIDE_RULES
from sidecar.pages import Page
from sidecar.snapshot import FaultSample
from sidecar.threads import SLOTS
from telemetry.layout import CORE
from telemetry.scoreboard import Reader

_P99: Final = 0.99


class FaultWatch:
    """The judge over the engine's pages; ``samples`` are the faults that hold now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stats = StatFiles(root)
        self._judge = Judge((*RULES, *OUTSIDE_RULES))
        self.frozen: frozenset[str] = frozenset()
        """Roles of which a process is stopped, by a signal or a tracer."""
        self.samples: tuple[FaultSample, ...] = ()

    def look(self, pages: Iterable[Page], now: float, outside: OutsideFacts | None = None) -> None:
        """Judge the engine as it is at this moment; ``outside`` is what is known of one without pages."""
        self.samples, self.frozen = (), frozenset()  # a look that fails must not leave the last one's standing
        seen = Observation(now, tuple(map(self._facts, pages)), outside)
        found = self._judge.observe(seen)
        self.frozen = frozenset(process.role for process in seen.processes if process.frozen)
        self.samples = tuple(FaultSample(one.fault, one.process, now - one.since, dict(one.evidence)) for one in found)

    def keep(self, pids: Collection[int]) -> None:
        """Let go of the files of all other processes."""
        self._stats.keep(pids)

    def close(self) -> None:
        """Let go of all files."""
        self._stats.keep(())

    def _facts(self, page: Page) -> ProcessFacts:
        page.refresh()
        pid, values = page.pid, page.reader.values()
        return ProcessFacts(
            role=page.header.role,
            name=page.header.name,
            liveness=page.liveness.value,
            identity=page.header.created_ns,
            state=read_state(self._stats, pid) if pid else None,
            # The page numbers threads as its own pid namespace does.
            threads=live_threads(self._root, pid, values) if pid and pid == page.header.pid else None,
            values=values,
            step_p99_ns=step_p99_ns(page.reader) if page.layout is CORE else 0,
        )


def read_state(stats: StatFiles, pid: int) -> str | None:
    """Scheduler state letter of a process (field 3 of /proc/PID/stat); None when it is not visible."""
    try:
        raw = stats.read(pid)
    except OSError:
        return None
    after_name = raw[raw.rfind(b")") + 1 :].split(None, 1)
    return after_name[0].decode(errors="replace") if after_name else None


def live_threads(root: Path, pid: int, values: Mapping[str, int]) -> frozenset[int]:
    """Those of the threads that a page names which the process has; one is asked for faster than all are listed."""
    named = {values.get(slot, 0) for slot in SLOTS.values()}
    return frozenset(one for one in named if one and os.access(f"{root}/{pid}/task/{one}", os.F_OK))


def step_p99_ns(reader: Reader) -> int:
    """Upper bound of the bucket that 99 % of the core's steps so far lie below; 0 before the first."""
    counts, _ = reader.histogram("step")
    wanted, below = _P99 * sum(counts), 0
    if not wanted:
        return 0
    for count, bound in zip(counts, reader.layout.bounds, strict=False):
        below += count
        if below >= wanted:
            return bound
    return reader.layout.bounds[-1]
