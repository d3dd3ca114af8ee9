"""Stops one worker process of vLLM (SIGSTOP) while it generates, so that the others and the core wait for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alerts.inside import busy, judged, stopped
from enginescope.drill import DrillError, wait_healthy
from enginescope.stack import Stack

NEEDS: Final = "vllm"
_TITLE: Final = "VLLM::Worker"


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stop it; continue it on exit."""
    with busy(stack), stopped(worker_pid(stack.pids["engine"])) as stamp:
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The judge says that the core waits."""
    return judged(stack, "step_stalled")


def worker_pid(group: int) -> int:
    """The first worker in a process group.

    Raises:
        DrillError: there is none.
    """
    for directory in sorted(Path("/proc").glob("[0-9]*")):
        try:
            is_worker = (directory / "comm").read_text().startswith(_TITLE)
            if is_worker and os.getpgid(int(directory.name)) == group:
                return int(directory.name)
        except OSError:
            continue
    raise DrillError(f"no process of the stack's engine is called {_TITLE}")
