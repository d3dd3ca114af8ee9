"""Lets the sidecar run less than half of the time (SIGSTOP, SIGCONT, again and again), as on a host short of CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.inside import throttled, wait_until
from enginescope.drill import DrillError
from enginescope.probe import is_ready, query
from enginescope.stack import Stack

MINUTES: Final = 4
"""The window, the wait and the time for which it is kept."""
_STOP, _RUN = 0.8, 0.3
"""Seconds. Longer than the gap over which it judges nothing, shorter than a scrape may take."""
_SHARE: Final = 0.2


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Throttle it; let it run freely on exit."""
    pid = stack.pids.get("sidecar", 0)
    if pid <= 1:
        raise DrillError("the stack's sidecar is not running")
    with throttled(pid, _STOP, _RUN) as stamp:
        yield stamp
    wait_until(lambda: is_ready(stack.ports["sidecar"], "/readyz"), "the sidecar did not come back")


def evidence(stack: Stack) -> bool:
    """It says of itself that it did not run for a good part of the last seconds."""
    starved = quote(f'max(rate(enginescope_sidecar_starved_seconds_total{{engine="{stack.engine}"}}[4s]))')
    return (query(stack.ports["prometheus"], starved) or 0) > _SHARE
