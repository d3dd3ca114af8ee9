"""Sends more long requests than the engine has room for, until it refuses some, and goes on asking."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from urllib.parse import quote

from alerts.crowd import room_for
from alerts.inside import LONG, asking, number, send_request
from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import query
from enginescope.stack import Stack

MAY_ALSO_PAGE: Final = {
    "StageLatencyBurn": "requests wait long for their first step",
    "TCPBacklogFull": "thousands of clients connect faster than a busy event loop accepts",
    "EventLoopBlocked": "thousands of requests come and go at once",
}
_MOST: Final = 4096
"""Clients; the engine's default allows 2048 waiting requests."""
_AT_ONCE: Final = 32
_ASKERS: Final = 24
"""More than a batch holds, so that some are refused also when a whole batch ends at once."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Fill it and keep asking; let all clients go on exit."""
    stamp = time.time_ns()
    with room_for(_MOST), ExitStack() as waiting:
        _fill(stack, waiting)
        with asking(stack, _ASKERS, LONG):
            yield stamp
        waiting.close()
        wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The engine refused a request for want of room within the last seconds."""
    shed = quote('sum(increase(enginescope_requests_shed_total{reason!~"draining|reloading"}[4s]))')
    return (query(stack.ports["prometheus"], shed) or 0) > 0


def _fill(stack: Stack, waiting: ExitStack) -> None:
    """Raises DrillError when the engine takes whatever comes."""
    before = number(stack, "requests_total", outcome="shed")
    for _ in range(_MOST // _AT_ONCE):
        for _ in range(_AT_ONCE):
            waiting.enter_context(send_request(stack.ports["engine"], LONG | {"stream": False}))
        if number(stack, "requests_total", outcome="shed") != before:
            return
    raise DrillError(f"the engine took {_MOST} requests and refused none: start it with a lower --max-waiting-requests")
