"""One look at the engine for the judge: its pages, and what /proc says about their owners right now.

Costs about 50 µs a process, so that it can be done ten times a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sidecar.judge import Judge, Observation, ProcessFacts
from sidecar.kernel.procfs import read_file
from sidecar.pages import Page
from sidecar.snapshot import FaultSample
from telemetry.layout import CORE
from telemetry.scoreboard import Reader

_P99: Final = 0.99


class FaultWatch:
    """The judge over the engine's pages; ``samples`` are the faults that hold now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._judge = Judge()
        self.samples: tuple[FaultSample, ...] = ()

    def look(self, pages: Iterable[Page], now: float) -> None:
        """Judge the engine as it is at this moment."""
        self.samples = ()  # a look that fails must not leave the last one's faults standing
        found = self._judge.observe(observe(pages, self._root, now))
        self.samples = tuple(FaultSample(one.fault, one.process, now - one.since, dict(one.evidence)) for one in found)


def observe(pages: Iterable[Page], root: Path, now: float) -> Observation:
    """The facts about every process with a page."""
    return Observation(now, tuple(_process_facts(page, root) for page in pages))


def _process_facts(page: Page, root: Path) -> ProcessFacts:
    page.refresh()
    pid = page.pid
    return ProcessFacts(
        role=page.header.role,
        name=page.header.name,
        liveness=page.liveness.value,
        identity=page.header.created_ns,
        state=read_state(root, pid) if pid else None,
        # The page numbers threads as its own pid namespace does.
        threads=read_threads(root, pid) if pid and pid == page.header.pid else None,
        values=page.reader.values(),
        step_p99_ns=step_p99_ns(page.reader) if page.layout is CORE else 0,
    )


def read_state(root: Path, pid: int) -> str | None:
    """Scheduler state letter of a process (field 3 of /proc/PID/stat); None when it is not visible."""
    try:
        return read_file(root, pid, "stat").rpartition(b")")[2].split(None, 1)[0].decode(errors="replace")
    except (OSError, IndexError):
        return None


def read_threads(root: Path, pid: int) -> frozenset[int] | None:
    """Native ids of a process's threads; None when they are not visible."""
    try:
        return frozenset(map(int, os.listdir(f"{root}/{pid}/task")))  # noqa: PTH208 - ten times a second
    except (OSError, ValueError):
        return None


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
