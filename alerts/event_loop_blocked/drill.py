"""Blocks the event loop of the API process (a fault hook of the engine)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.inside import judged, triggered, wait_until
from enginescope.drill import wait_healthy
from enginescope.stack import Stack

NEEDS: Final = "faults"
_SECONDS: Final = "180"
"""Longer than it takes to be judged, scraped and paged; it ends when the drill does."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Block it; on exit end that and wait until the loop goes on."""
    with triggered(stack, "block_loop", _SECONDS) as stamp:
        yield stamp
    wait_until(lambda: not evidence(stack), "the event loop did not go on")
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The judge says so."""
    return judged(stack, "event_loop_blocked")
