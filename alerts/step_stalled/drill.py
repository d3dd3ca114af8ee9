"""Lets the core's main thread do nothing inside a step (a fault hook of the engine) while requests wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.inside import busy, judged, triggered, wait_until
from enginescope.drill import wait_healthy
from enginescope.stack import Stack

NEEDS: Final = "faults"
_SECONDS: Final = "180"
"""Longer than it takes to be judged, scraped and paged; it ends when the drill does."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stall it; on exit end that and wait until the core goes on."""
    with busy(stack):
        with triggered(stack, "stall_core", _SECONDS) as stamp:
            yield stamp
        wait_until(lambda: not evidence(stack), "the core did not go on")
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The judge says so."""
    return judged(stack, "step_stalled")
