"""Twenty users press stop in the middle of their streams, within a second."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, grew
from enginescope.drill import DrillError
from enginescope.stack import Stack

COULD_PAGE: Final = ("tcp_backlog_full", "close_wait_leak", "step_stalled")
SPAN: Final = "6m"
_BODY: Final = {"prompt": "hello", "temperature": 0, "max_tokens": 2000, "ignore_eos": True, "stream": True}
_USERS: Final = 20
_ENOUGH: Final = 10
"""A stream that was complete already does not count; most are not."""


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Wait until every stream has begun, then close them all."""
    proof = grew(stack, "client_disconnects_total", _ENOUGH)
    body = json.dumps(_BODY)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n{body}".encode()
    try:
        with ExitStack() as opened:
            users = [
                opened.enter_context(socket.create_connection(("127.0.0.1", stack.ports["engine"]), timeout=30))
                for _ in range(_USERS)
            ]
            for user in users:
                user.sendall(request)
            for user in users:
                user.recv(1)
    except OSError as error:
        raise DrillError(f"a stream did not begin: {error}") from error
    yield proof
