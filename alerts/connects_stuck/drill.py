"""Stops the collector of spans (SIGSTOP) and fills its accept queue, so that the span exporter's SYNs get no answer."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from enginescope.drill import DrillError, signal_group
from enginescope.probe import samples, total
from enginescope.stack import Stack

MINUTES: Final = 3
MAY_ALSO_PAGE: Final = {"SpansDropped": "a collector that is stopped takes no spans either"}
_CLIENTS: Final = 8
"""More than the collector's backlog."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stop it and fill its queue; all of that ends on exit."""
    if "otlp_sink" not in stack.pids:
        raise DrillError("spans go to a collector that is not the stack's own, which a drill does not touch")
    with ExitStack() as clients:
        stamp = time.time_ns()
        try:
            signal_group(stack, "otlp_sink", signal.SIGSTOP)
            for _ in range(_CLIENTS):
                _connect(clients.enter_context(socket.socket()), stack.ports["otlp"])
            yield stamp
        finally:
            signal_group(stack, "otlp_sink", signal.SIGCONT)


def evidence(stack: Stack) -> bool:
    """The sidecar sees an unanswered connection of the engine."""
    return (total(samples(stack.ports["sidecar"]), "enginescope_connects_pending") or 0) >= 1


def _connect(client: socket.socket, port: int) -> None:
    client.setblocking(False)
    error = client.connect_ex(("127.0.0.1", port))
    if error not in (0, errno.EINPROGRESS):
        raise DrillError(f"cannot connect to port {port}: {os.strerror(error)}")
