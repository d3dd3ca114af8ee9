"""Three hundred clients come at once, ask one thing each and keep their connections: a step is no growth."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final

from alerts.crowd import room_for
from enginescope.decoys.proofs import Proof, reached
from enginescope.drill import DrillError
from enginescope.stack import Stack

COULD_PAGE: Final = ("connection_growth", "fd_growth", "connections_near_limit", "close_wait_leak", "tcp_backlog_full")
SPAN: Final = "25m"
"""FDGrowth compares ten minutes with the ten before, for five."""
_CLIENTS: Final = 300
_AGAIN_SECONDS: Final = 20
"""Well before the engine would close them."""


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Open them, and use each of them now and then."""
    over, port = threading.Event(), stack.ports["engine"]
    with room_for(_CLIENTS), ExitStack() as opened:
        clients = [
            opened.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)))
            for _ in range(_CLIENTS)
        ]
        _use(clients)
        thread = threading.Thread(target=_keep_using, args=(clients, over), daemon=True)
        thread.start()
        try:
            yield reached(stack, "connections", _CLIENTS, port=str(port), state="established")
        finally:
            over.set()
            thread.join()


def _keep_using(clients: list[http.client.HTTPConnection], over: threading.Event) -> None:
    with suppress(DrillError):
        while not over.wait(_AGAIN_SECONDS):
            _use(clients)


def _use(clients: list[http.client.HTTPConnection]) -> None:
    try:
        for client in clients:
            client.request("GET", "/v1/models")
            client.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        raise DrillError(f"a client with an open connection got no answer: {error}") from error
