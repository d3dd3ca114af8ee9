"""Kills the sidecar (SIGKILL) and keeps it from being restarted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from enginescope.drill import signal_group
from enginescope.probe import query
from enginescope.stack import Stack


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Kill it; let it restart on exit."""
    with stack.held("sidecar"):
        stamp = time.time_ns()
        signal_group(stack, "sidecar", signal.SIGKILL)
        yield stamp


def evidence(stack: Stack) -> bool:
    """Prometheus cannot scrape it."""
    return query(stack.ports["prometheus"], quote(f'up{{job="enginescope",engine="{stack.engine}"}}')) == 0
