"""Taking the engine's listening socket away from it behind its back, and giving it back."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginescope.borrow import borrow_listener, disconnect

# struct tcp_info: on a listening socket, its sixth 4-byte field is the limit of the accept queue.
_TCP_INFO: Final = struct.Struct("=8x6I")


@contextmanager
def taken_over(pid: int, port: int) -> Iterator[socket.socket]:
    """The process's listening socket, bound and no longer listening, and no longer watched; it listens again on exit.

    Raises:
        DrillError: the process has none, or we may not touch it.
    """
    borrowed = borrow_listener(pid, port)
    with borrowed.socket as listener:
        backlog = _TCP_INFO.unpack(listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))[5]
        watch = borrowed.unwatch()
        try:
            listener.shutdown(socket.SHUT_RD)
            yield listener
        finally:
            disconnect(listener)
            listener.listen(backlog)
            watch()
