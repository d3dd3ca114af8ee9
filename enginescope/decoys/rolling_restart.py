"""The engine is asked to end (SIGTERM) and started again, as in a deployment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, grew
from enginescope.drill import signal_launcher, wait_healthy
from enginescope.stack import Stack

COULD_PAGE: Final = ("engine_down", "tcp_backlog_full", "process_frozen", "step_stalled")
SPAN: Final = "90s"
NEEDS: Final = "shipped_rules"
"""A start takes its time, whatever the rules think of time."""


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """End it politely; whoever supervises it starts it again."""
    proof = grew(stack, "process_starts_total", 1, process="api")
    signal_launcher(stack, signal.SIGTERM)
    yield proof
    wait_healthy(stack)
