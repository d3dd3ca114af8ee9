"""Kills what takes the spans (SIGKILL) and keeps it from being restarted, while requests make spans."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.inside import asking, number, wait_until
from enginescope.drill import DrillError, signal_group
from enginescope.probe import is_ready, query
from enginescope.stack import Stack

MINUTES: Final = 10
"""Five until the lost spans have left the window, five during which it is kept firing."""
_SINK: Final = "otlp_sink"
_CLIENTS: Final = 4


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Kill it; let it restart on exit and wait until spans are delivered again."""
    if _SINK not in stack.pids:
        raise DrillError(
            "spans of this stack go to another endpoint: unset OTEL_EXPORTER_OTLP_ENDPOINT and start it anew"
        )
    with asking(stack, _CLIENTS):
        with stack.held(_SINK):
            stamp = time.time_ns()
            signal_group(stack, _SINK, signal.SIGKILL)
            yield stamp
        wait_until(lambda: is_ready(stack.ports["otlp"], "/healthz"), "the OTLP sink did not come back")
        exported = _exported(stack)
        wait_until(lambda: _exported(stack) > exported, "no span was delivered")


def evidence(stack: Stack) -> bool:
    """Spans were given up within the last seconds."""
    dropped = quote('sum(increase(enginescope_spans_total{outcome="dropped"}[4s]))')
    return (query(stack.ports["prometheus"], dropped) or 0) > 0


def _exported(stack: Stack) -> float:
    return number(stack, "spans_total", outcome="exported") or 0
