"""Kills every process of the engine (SIGKILL) and keeps it from being restarted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from enginescope.drill import signal_group, wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Kill it; let it restart on exit and wait until it answers again."""
    with stack.held("engine"):
        stamp = time.time_ns()
        signal_group(stack, "engine", signal.SIGKILL)
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The sidecar finds no engine."""
    return total(samples(stack.ports["sidecar"]), "enginescope_engine_up") == 0
