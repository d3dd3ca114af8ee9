"""Narrows the range of local ports to 32 and takes all of them towards one destination."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from alerts.lab import sysctls
from enginescope.drill import DrillError
from enginescope.probe import samples, total
from enginescope.stack import Stack

NEEDS: Final = "namespace"
_FIRST, _COUNT = 40000, 32
_DESTINATION: Final = ("127.0.0.1", 29999)


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Connect until that fails; the clients leave and the range comes back on exit."""
    with ExitStack() as held:
        destination = held.enter_context(socket.create_server(_DESTINATION, backlog=2 * _COUNT))
        stamp = time.time_ns()
        held.enter_context(sysctls(stack, ipv4__ip_local_port_range=f"{_FIRST} {_FIRST + _COUNT - 1}"))
        for _ in range(_COUNT + 1):
            if (error := held.enter_context(socket.socket()).connect_ex(destination.getsockname())) != 0:
                break
        if error != errno.EADDRNOTAVAIL:
            raise DrillError(f"{_COUNT + 1} connections from {_COUNT} ports did not fail as they must (errno {error})")
        yield stamp


def evidence(stack: Stack) -> bool:
    """The sidecar sees the narrow range used up."""
    found = samples(stack.ports["sidecar"])
    used, limit = (total(found, f"enginescope_ephemeral_ports_{name}") for name in ("used", "limit"))
    return used is not None and limit == _COUNT and used >= _COUNT
