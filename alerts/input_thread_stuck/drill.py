"""Lets the core's input thread end with an exception at its next message (a fault hook of the engine)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.inside import asking, judged, replace_core, triggered
from enginescope.stack import Stack

NEEDS: Final = "faults"
MAY_ALSO_PAGE: Final = {
    "RestartLoop": "drills one after the other, on faster rules, restart it as often as a loop does"
}


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Trigger it, with streams as messages; on exit replace the core, whose thread does not come back."""
    with triggered(stack, "input_thread") as stamp:
        try:
            with asking(stack, 2):
                yield stamp
        finally:
            replace_core(stack)


def evidence(stack: Stack) -> bool:
    """The judge says so."""
    return judged(stack, "input_thread_stuck")
