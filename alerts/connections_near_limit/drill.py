"""Lowers the API process's soft limit of open files (prlimit) and opens real connections up to 86.5 % of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.crowd import api_pid, crowd, open_files, soft_limit
from enginescope.drill import wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack

_SHARE: Final = 0.865
_TIMES_ITS_FILES: Final = 45
"""With the files that it has anyway, the process then uses less than nine tenths: FDExhausted has nothing to say."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Fill it; clients leave and the limit comes back on exit."""
    pid = api_pid(stack)
    limit = open_files(pid) * _TIMES_ITS_FILES
    count = int(limit * _SHARE)
    with crowd(stack.ports["engine"], count) as clients:
        stamp = time.time_ns()
        with soft_limit(pid, limit):
            clients.grow_to(count)
            yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The sidecar counts more than 85 % of the limit."""
    found, port = samples(stack.ports["sidecar"]), str(stack.ports["engine"])
    held = total(found, "enginescope_connections", port=port, state="established")
    limit = total(found, "enginescope_connections_limit", port=port)
    return held is not None and limit is not None and held > 0.85 * limit
