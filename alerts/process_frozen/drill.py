"""Stops the core process (SIGSTOP) while it streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alerts.inside import busy, judged, process_pid, stopped
from enginescope.drill import wait_healthy
from enginescope.stack import Stack
from telemetry.layout import CORE


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stop it; continue it on exit."""
    with busy(stack), stopped(process_pid(stack, CORE.role)) as stamp:
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The judge says so."""
    return judged(stack, "process_frozen")
