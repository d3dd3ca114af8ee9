"""Takes the listener away from the running API process: its socket is disconnected and connected to the drill.

The process keeps the descriptor and notices nothing. On exit the same socket listens again, with its old backlog.
"""

from __future__ import annotations

import socket
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
    """Let the port vanish; it listens again on exit."""
    with socket.create_server(("127.0.0.1", 0)) as somewhere:
        stamp = time.time_ns()
        with taken_over(api_pid(stack), stack.ports["engine"]) as listener:
            listener.connect_ex(somewhere.getsockname())  # it is not blocking, so this may say "in progress"
            yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The sidecar sees no listener on the engine's port."""
    return total(samples(stack.ports["sidecar"]), "enginescope_listener_up", port=str(stack.ports["engine"])) == 0
