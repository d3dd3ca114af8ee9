"""Gives the core a quarter of its time (SIGSTOP, SIGCONT, again and again), so that requests reach it late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from alerts.inside import asking, process_pid, throttled, wait_until
from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import query
from enginescope.stack import Stack
from telemetry.layout import CORE

MINUTES: Final = 55
"""With the rules as shipped an hour of requests that were well has to be outweighed, and then to be forgotten."""
MAY_ALSO_PAGE: Final = {"SerializationSlow": "a message is half serialized when the core is stopped"}
_CLIENTS: Final = 24
_STOP, _RUN = 1.5, 0.5
"""Seconds. Not long enough to be called frozen or stalled."""
_FASTEST, _FAST = 0.144, 0.06
_OUTWEIGH_SECONDS: Final = 60.0


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Throttle it under many short requests; let it run freely on exit, so that good ones outweigh the bad."""
    with asking(stack, _CLIENTS):
        with throttled(process_pid(stack, CORE.role), _STOP, _RUN) as stamp:
            yield stamp
        wait_healthy(stack)
        with suppress(DrillError):
            wait_until(lambda: _misses(stack, "30m") < _FAST, "not outweighed", _OUTWEIGH_SECONDS)


def evidence(stack: Stack) -> bool:
    """A stage misses its objective often enough in a long window."""
    return _misses(stack, "1h") > _FASTEST or _misses(stack, "6h") > _FAST


def _misses(stack: Stack, window: str) -> float:
    expression = f'max(engine_stage:latency_misses:ratio_rate{window}{{engine="{stack.engine}"}})'
    return query(stack.ports["prometheus"], quote(expression)) or 0
