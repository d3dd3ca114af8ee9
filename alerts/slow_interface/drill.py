"""Slows the engine's link to 4 Mbit/s (tbf), where the interface says 10 Gbit/s, while six clients read from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.lab import readers, slow_link
from enginescope.drill import wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack

NEEDS: Final = ("namespace", "tc")
MINUTES: Final = 6
"""Five of them until it counts as lasting."""
_CLIENTS: Final = 6
_ENOUGH: Final = 3
_SLOW: Final = 2e6


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Read over a slow link; the link is as before and the clients gone on exit."""
    stamp = time.time_ns()
    with slow_link(stack, "4mbit"), readers(stack, _CLIENTS):
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """Several connections are held back at a low rate."""
    found, port = samples(stack.ports["sidecar"]), str(stack.ports["engine"])
    limited = total(found, "enginescope_connections_network_limited", port=port) or 0
    rate = total(found, "enginescope_connection_delivery_median_bytes_per_second", port=port)
    return limited >= _ENOUGH and rate is not None and rate < _SLOW
