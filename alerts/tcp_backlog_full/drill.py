"""Stops the API process (SIGSTOP) and opens real connections until its accept queue overflows."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from alerts.crowd import api_pid, room_for
from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack

MAY_ALSO_PAGE: Final = {"ProcessFrozen": "the API process is stopped for longer than three seconds"}
_MARGIN: Final = 64
"""Connections beyond the limit. The kernel drops them, and drops them again at each retry."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stop the process, fill the queue; continue it and close all connections on exit."""
    pid = api_pid(stack)
    depth, limit = queue(stack)
    count = limit + 1 + _MARGIN
    if depth is None or limit == 0:
        raise DrillError(f"the sidecar does not show the accept queue of port {stack.ports['engine']}")
    with room_for(count), ExitStack() as clients:
        stamp = time.time_ns()
        try:
            os.kill(pid, signal.SIGSTOP)
            for _ in range(count):
                _connect(clients.enter_context(socket.socket()), stack.ports["engine"])
            yield stamp
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The queue is at its limit."""
    depth, limit = queue(stack)
    return depth is not None and depth >= max(limit, 1)


def queue(stack: Stack) -> tuple[int | None, int]:
    """Depth and limit of the engine's accept queue, as the sidecar shows them."""
    found, port = samples(stack.ports["sidecar"]), str(stack.ports["engine"])
    depth = total(found, "enginescope_listener_accept_queue_depth", port=port)
    limit = total(found, "enginescope_listener_accept_queue_limit", port=port)
    return None if depth is None else int(depth), int(limit or 0)


def _connect(client: socket.socket, port: int) -> None:
    client.settimeout(0)
    error = client.connect_ex(("127.0.0.1", port))
    if error not in (0, errno.EINPROGRESS):
        raise DrillError(f"cannot connect to port {port}: {os.strerror(error)}")
