"""Stops Prometheus (SIGSTOP), so that no alert is delivered any more; the page receiver's dead-man has to notice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginescope.drill import deadman_age, signal_group
from enginescope.stack import Stack

WHOLE_STACK: Final = True


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stop it; continue it on exit."""
    stamp = time.time_ns()
    signal_group(stack, "prometheus", signal.SIGSTOP)
    try:
        yield stamp
    finally:
        signal_group(stack, "prometheus", signal.SIGCONT)


def evidence(stack: Stack) -> bool:
    """The receiver has heard nothing for longer than it allows."""
    age, allowed = deadman_age(stack)
    return age > allowed
