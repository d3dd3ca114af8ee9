"""Loses a tenth of what the engine sends, at the receiver's input (nftables), while three clients read from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.lab import losing, readers
from enginescope.probe import query
from enginescope.stack import Stack

NEEDS: Final = ("namespace", "nft")
MINUTES: Final = 8
"""Five of them until a share counts as lasting."""
_PERCENT: Final = 10
_CLIENTS: Final = 3


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Read over a bad link; the rule and the clients go on exit."""
    stamp = time.time_ns()
    with losing(stack, _PERCENT), readers(stack, _CLIENTS):
        yield stamp


def evidence(stack: Stack) -> bool:
    """More than one segment a second is sent again."""
    series = f'engine:segments_retransmitted:rate5m{{engine="{stack.engine}"}} > 1'
    return query(stack.ports["prometheus"], quote(series)) is not None
