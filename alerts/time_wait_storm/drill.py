"""Lowers the kernel's limit of TIME_WAIT sockets to 512 and opens and closes connections until it is reached."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.lab import repeated, sysctls
from enginescope.probe import samples, total
from enginescope.stack import Stack

NEEDS: Final = "namespace"
MINUTES: Final = 6
"""Five of them until it counts as lasting."""
_LIMIT: Final = 512
_PER_SECOND: Final = 20


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Open and close; that ends and the limit comes back on exit."""
    with socket.create_server(("127.0.0.1", 0)) as destination:

        def come_and_go(_: int) -> None:
            with socket.create_connection(destination.getsockname(), 5):
                accepted, _ = destination.accept()
            accepted.close()  # second, so that the client's end is the one in TIME_WAIT

        stamp = time.time_ns()
        with sysctls(stack, ipv4__tcp_max_tw_buckets=_LIMIT):
            for number in range(_LIMIT):
                come_and_go(number)
            with repeated(come_and_go, _PER_SECOND):
                yield stamp


def evidence(stack: Stack) -> bool:
    """The sidecar sees four fifths of the lowered limit in use."""
    found = samples(stack.ports["sidecar"])
    limit = total(found, "enginescope_sysctl", kind="tcp_max_tw_buckets")
    return limit == _LIMIT and (total(found, "enginescope_netns_time_wait_sockets") or 0) >= 0.8 * _LIMIT
