"""A few handshakes are answered with SYN cookies, as after a short burst of connections; nobody is turned away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from enginescope.decoys.proofs import Proof, grew
from enginescope.drill import DrillError
from enginescope.stack import Stack

COULD_PAGE: Final = ("tcp_backlog_full",)
SPAN: Final = "6m"
NEEDS: Final = ("namespace", "root")
_SETTING: Final = Path("/proc/sys/net/ipv4/tcp_syncookies")
_ALWAYS: Final = "2"
_EVERY_SECONDS: Final = 1.0
_ENOUGH: Final = 5


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Have every handshake in the namespace answered with a cookie, and connect now and then."""
    before, over = _SETTING.read_text(), threading.Event()
    try:
        _SETTING.write_text(_ALWAYS)
    except OSError as error:
        raise DrillError(f"cannot write {_SETTING}: {error.strerror}") from error
    thread = threading.Thread(target=_connect, args=(stack.ports["engine"], over), daemon=True)
    proof = grew(stack, "netns_syncookies_sent_total", _ENOUGH)
    thread.start()
    try:
        yield proof
    finally:
        over.set()
        thread.join()
        _SETTING.write_text(before)


def _connect(port: int, over: threading.Event) -> None:
    while not over.wait(_EVERY_SECONDS):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
