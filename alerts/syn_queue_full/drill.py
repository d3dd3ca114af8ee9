"""Turns SYN cookies off and floods the engine with SYNs from addresses that never answer, 500 a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.lab import syn_flood, sysctls
from enginescope.drill import wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack

NEEDS: Final = "namespace"
MAY_ALSO_PAGE: Final = {"ListenSysctlUnsafe": "the drill turns SYN cookies off, which that alert is about"}
_PER_SECOND: Final = 500
_BACKLOG: Final = 128
"""The kernel keeps three quarters of it half open."""
_ENOUGH: Final = _BACKLOG // 2


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Flood; the flood ends and the settings come back on exit."""
    small = {"ipv4__tcp_syncookies": 0, "ipv4__tcp_max_syn_backlog": _BACKLOG, "ipv4__tcp_synack_retries": 0}
    stamp = time.time_ns()
    with sysctls(stack, **small), syn_flood(stack, _PER_SECOND):
        yield stamp
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """Half-open connections fill the queue and the listener has dropped some."""
    found, port = samples(stack.ports["sidecar"]), str(stack.ports["engine"])
    half_open = total(found, "enginescope_connections", port=port, state="syn_received") or 0
    cookies = total(found, "enginescope_sysctl", kind="tcp_syncookies")
    return half_open >= _ENOUGH and cookies == 0
