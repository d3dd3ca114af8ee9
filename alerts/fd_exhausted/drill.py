"""Lowers the API process's soft limit of open files (prlimit) and connects until it has none left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.crowd import api_pid, crowd, open_files, soft_limit
from enginescope.drill import wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack

_LEFT: Final = 16
_CLIENTS: Final = 64
"""More than are left, so that accept() fails."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Use up the files; clients leave and the limit comes back on exit."""
    pid = api_pid(stack)
    with crowd(stack.ports["engine"], _CLIENTS) as clients:
        stamp = time.time_ns()
        with soft_limit(pid, open_files(pid) + _LEFT):
            clients.grow_to(_CLIENTS)
            yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The sidecar sees nine tenths of the limit in use."""
    found = samples(stack.ports["sidecar"])
    used = total(found, "enginescope_process_open_fds", process="api")
    limit = total(found, "enginescope_process_max_fds", process="api")
    return used is not None and limit is not None and used > 0.9 * limit
