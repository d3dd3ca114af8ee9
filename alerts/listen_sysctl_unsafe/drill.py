"""Turns SYN cookies off in the network namespace of the stack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alerts.lab import sysctls
from enginescope.probe import samples, total
from enginescope.stack import Stack

NEEDS: Final = "namespace"
MINUTES: Final = 6
"""Five until a setting counts as chosen."""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Turn them off; on again on exit."""
    stamp = time.time_ns()
    with sysctls(stack, ipv4__tcp_syncookies=0):
        yield stamp


def evidence(stack: Stack) -> bool:
    """The sidecar reads the setting."""
    return total(samples(stack.ports["sidecar"]), "enginescope_sysctl", kind="tcp_syncookies") == 0
