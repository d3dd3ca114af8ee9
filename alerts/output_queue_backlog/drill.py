"""Makes the API's receiver thread rest after each message (a fault hook of the engine) while the core streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.inside import busy, number, repeated
from enginescope.drill import wait_healthy
from enginescope.stack import Stack

NEEDS: Final = "faults"
MAY_ALSO_PAGE: Final = {
    "RequestsShed": "the engine refuses requests while its outputs are behind",
    "StageLatencyBurn": "outputs wait",
    "SendQueueStuck": "the pipe to the API process fills up",
    "ReceiveQueueStuck": "the pipe to the API process fills up",
}
_STREAMS: Final = 8
_SECONDS: Final = "0.05"
"""Twenty messages a second are far fewer than a core makes for eight streams."""
_ENOUGH: Final = 50


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Slow it down under streams; let it run freely on exit."""
    with busy(stack, _STREAMS), repeated(stack, "rest", _SECONDS) as stamp:
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """As many messages wait as the rule wants."""
    queued, unreceived = number(stack, "queue_depth", kind="output"), number(stack, "output_unreceived_messages")
    return (queued or 0) + (unreceived or 0) >= _ENOUGH
