"""Sends the engine half a request on each of 40 connections a second and cuts them off with a RST."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.lab import repeated
from enginescope.probe import query
from enginescope.stack import Stack

_PER_SECOND: Final = 40
_NO_LINGER: Final = struct.pack("ii", 1, 0)


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Cut off; that ends on exit."""

    def cut_off(_: int) -> None:
        with socket.create_connection(("127.0.0.1", stack.ports["engine"]), timeout=5) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: drill\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    stamp = time.time_ns()
    with repeated(cut_off, _PER_SECOND):
        yield stamp


def evidence(stack: Stack) -> bool:
    """More than one connection a second is reset."""
    series = f'engine:established_resets:rate5m{{engine="{stack.engine}"}} > 1'
    return query(stack.ports["prometheus"], quote(series)) is not None
