"""Makes the core's output thread take 50 ms for each message it serializes (a fault hook of the engine)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.inside import busy, repeated
from enginescope.drill import wait_healthy
from enginescope.probe import query
from enginescope.stack import Stack

NEEDS: Final = "faults"
MINUTES: Final = 10
"""The window, the wait and the time for which it is kept."""
MAY_ALSO_PAGE: Final = {
    "OutputQueueBacklog": "20 messages a second is less than the core makes",
    "RequestsShed": "the engine refuses requests while its outputs are behind",
    "StageLatencyBurn": "outputs wait",
}
_ENOUGH: Final = 2
_SECONDS: Final = "0.05"


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Slow down one message after the other under streams; stop that on exit."""
    with busy(stack), repeated(stack, "encode", _SECONDS) as stamp:
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """Prometheus saw a message that took longer than 10 ms within the last seconds."""
    name = "enginescope_output_encode_seconds"
    slow = f'sum(increase({name}_count[4s])) - sum(increase({name}_bucket{{le="0.01"}}[4s]))'
    return (query(stack.ports["prometheus"], quote(slow)) or 0) > _ENOUGH
