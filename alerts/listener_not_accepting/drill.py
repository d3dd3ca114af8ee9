"""Shuts the engine's listening socket down behind its back: the port stays bound, and nobody listens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from alerts.crowd import api_pid
from alerts.listeners import taken_over
from enginescope.drill import wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Shut it down; it listens again on exit."""
    stamp = time.time_ns()
    with taken_over(api_pid(stack), stack.ports["engine"]):
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The sidecar sees a socket that is bound to the port and no listener."""
    found, port = samples(stack.ports["sidecar"]), str(stack.ports["engine"])
    return (total(found, "enginescope_listener_bound_sockets", port=port) or 0) > 0
