"""The engine loads its model again (SIGHUP): no request gets in for that time, and a new core process comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, grew
from enginescope.drill import signal_launcher, wait_healthy
from enginescope.stack import Stack

COULD_PAGE: Final = ("engine_down", "step_stalled", "input_thread_stuck", "output_thread_stuck")
SPAN: Final = "90s"
NEEDS: Final = "shipped_rules"
"""Loading takes its time, whatever the rules think of time."""


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Ask for it, as an operator does."""
    proof = grew(stack, "process_starts_total", 1, process="core")
    signal_launcher(stack, signal.SIGHUP)
    yield proof
    wait_healthy(stack)
