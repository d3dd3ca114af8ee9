"""Makes the API process keep ever more: one client uploads a request body that never ends, 10 MiB a minute.

With rules that are twenty times faster, 200 MiB a minute.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.calm import wait_for_calm
from alerts.lab import repeated
from enginescope.probe import query
from enginescope.stack import Stack

MINUTES: Final = 50
"""Thirty for the process to be old enough, twenty of growth."""
_TOTAL: Final = 1 << 40
_PIECE: Final = b"x" * (1 << 16)
_A_SECOND: Final = 10 * (1 << 20) / 60
_MOST: Final = round(MINUTES * 60 * _A_SECOND)
_LAST_HOUR: Final = 80 * 60
_CALM_ABOVE_NOW: Final = 100 << 20
_ENOUGH: Final = 64 << 20
_HEAD: Final = (
    "POST /v1/completions HTTP/1.1\r\nHost: drill\r\nContent-Type: application/json\r\n"
    f"Content-Length: {_TOTAL}\r\n\r\n"
)


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Upload; the client leaves on exit, and the process frees what it kept."""
    series = f'engine_process:resident_memory_bytes:max{{engine="{stack.engine}",process="api"}}'
    now = query(stack.ports["prometheus"], quote(series)) or 0
    wait_for_calm(stack.ports["prometheus"], series, now + _CALM_ABOVE_NOW, _LAST_HOUR * stack.time_scale)
    with socket.create_connection(("127.0.0.1", stack.ports["engine"]), 30) as client:
        stamp = time.time_ns()
        client.sendall(_HEAD.encode())
        sent = 0

        def upload(_: int) -> None:
            nonlocal sent
            if sent < _MOST:
                client.sendall(_PIECE)
                sent += len(_PIECE)

        with repeated(upload, _A_SECOND / stack.time_scale / len(_PIECE)):
            yield stamp


def evidence(stack: Stack) -> bool:
    """Both windows grew."""
    series = f'engine_process:resident_memory_bytes:slower_delta{{engine="{stack.engine}",process="api"}} >= {_ENOUGH}'
    return query(stack.ports["prometheus"], quote(series)) is not None
