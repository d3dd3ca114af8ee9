"""Nobody asks anything: the traffic stops, and every sign of progress gets old."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, stood_still
from enginescope.stack import TRAFFIC, Stack

COULD_PAGE: Final = ("step_stalled", "input_thread_stuck", "output_thread_stuck", "event_loop_blocked")
SPAN: Final = "5m"


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Hold the traffic."""
    with stack.held(TRAFFIC):
        yield stood_still(stack, "requests_received_total", 8.0)
