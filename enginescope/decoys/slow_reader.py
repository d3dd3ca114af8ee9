"""A client reads a long stream slowly, but it reads: its bytes wait in the engine's send queue and move on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from enginescope.decoys.proofs import Proof, reached
from enginescope.stack import Stack

COULD_PAGE: Final = ("output_thread_stuck", "event_loop_blocked")
SPAN: Final = "5m"
_BODY: Final = {"prompt": "hello", "temperature": 0, "max_tokens": 2000, "ignore_eos": True, "stream": True}
_BUFFER: Final = 4096
_PIECE: Final = 4096
_EVERY_SECONDS: Final = 0.1
_ENOUGH: Final = 10_000


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Read a piece now and then; when a stream is over, ask for the next."""
    over, port = threading.Event(), stack.ports["engine"]
    thread = threading.Thread(target=_read_slowly, args=(port, over), daemon=True)
    thread.start()
    try:
        yield reached(stack, "send_queue_max_bytes", _ENOUGH, port=str(port))
    finally:
        over.set()
        thread.join()


def _read_slowly(port: int, over: threading.Event) -> None:
    body = json.dumps(_BODY)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    while not over.wait(_EVERY_SECONDS):
        with suppress(OSError), socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            client.settimeout(5)
            client.connect(("127.0.0.1", port))
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
            while not over.wait(_EVERY_SECONDS) and client.recv(_PIECE):
                pass
