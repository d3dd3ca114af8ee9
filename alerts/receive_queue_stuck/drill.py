"""Takes four connections out of the API process's epoll behind its back, and sends on them: nobody reads them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from alerts.crowd import api_pid
from enginescope.borrow import borrow_connection
from enginescope.drill import DrillError
from enginescope.probe import samples, total
from enginescope.stack import Stack

_CLIENTS: Final = 4
_ENOUGH: Final = 3
_BYTES: Final = 16384
_ACCEPT_SECONDS: Final = 10


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Send what nobody reads; it is read again on exit, and the clients leave."""
    pid, port = api_pid(stack), stack.ports["engine"]
    with ExitStack() as clients:
        forgotten = [clients.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(_CLIENTS)]
        stamp = time.time_ns()
        for client in forgotten:
            _forget(pid, port, client, clients)
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Drill: " + b"x" * _BYTES)
        yield stamp


def evidence(stack: Stack) -> bool:
    """The sidecar counts enough of them."""
    port = str(stack.ports["engine"])
    found = total(samples(stack.ports["sidecar"]), "enginescope_queue_stuck_sockets", port=port, kind="receive")
    return (found or 0) >= _ENOUGH


def _forget(pid: int, port: int, client: socket.socket, clients: ExitStack) -> None:
    """Make the process blind for one connection, once it has accepted it."""
    failure = DrillError("the API process did not accept the drill's connections")
    deadline = time.monotonic() + _ACCEPT_SECONDS
    while time.monotonic() < deadline:
        try:
            borrowed = borrow_connection(pid, port, client.getsockname()[1])
        except DrillError as error:
            failure = error
            time.sleep(0.05)
            continue
        clients.enter_context(borrowed.socket)
        clients.callback(borrowed.unwatch())
        return
    raise failure
