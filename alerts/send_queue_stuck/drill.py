"""Six clients with small buffers ask for far more than fits, and read nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from alerts.lab import LARGE_REQUEST
from enginescope.probe import samples, total
from enginescope.stack import Stack

_CLIENTS: Final = 6
_ENOUGH: Final = 5
_REQUESTS: Final = 400
_SMALL: Final = 4096


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Ask and do not read; the clients leave on exit."""
    stamp = time.time_ns()
    with ExitStack() as clients:
        for _ in range(_CLIENTS):
            _ask(clients.enter_context(socket.socket()), stack.ports["engine"])
        yield stamp


def evidence(stack: Stack) -> bool:
    """The sidecar counts enough of them."""
    port = str(stack.ports["engine"])
    found = total(samples(stack.ports["sidecar"]), "enginescope_queue_stuck_sockets", port=port, kind="send")
    return (found or 0) >= _ENOUGH


def _ask(client: socket.socket, port: int) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
    client.settimeout(1)
    client.connect(("127.0.0.1", port))
    with suppress(TimeoutError):  # the engine reads the next request after it has written the answer before
        client.sendall(LARGE_REQUEST * _REQUESTS)
