"""Gives the core little CPU (SIGSTOP, SIGCONT, again and again), so that steps go on and the GPU waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.inside import busy, number, process_pid, throttled
from enginescope.drill import wait_healthy
from enginescope.stack import Stack
from telemetry.layout import CORE

NEEDS: Final = "gpu"
MAY_ALSO_PAGE: Final = {
    "SerializationSlow": "a message is half serialized when the core is stopped",
    "StageLatencyBurn": "every step takes long",
}
_STOP, _RUN = 0.2, 0.03
"""Seconds. Long enough runs for the sidecar to see some, or it would call the process frozen."""
_IDLE: Final = 0.05


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Throttle it under streams; let it run freely on exit."""
    with busy(stack), throttled(process_pid(stack, CORE.role), _STOP, _RUN) as stamp:
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The GPU is idle and requests run."""
    utilization = number(stack, "gpu_utilization_ratio")
    running = number(stack, "requests_running") or 0
    return utilization is not None and utilization < _IDLE and running > 0
