"""Opens real idle connections to the engine, 50 at first and 2000 after thirty minutes, on an exponential.

With rules that are twenty times faster, the curve is twenty times faster too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.calm import wait_for_calm
from alerts.crowd import growing_crowd
from enginescope.probe import query, samples, total
from enginescope.stack import Stack

MINUTES: Final = 30
"""Fifteen for the engine to be old enough, twelve on the curve."""
MAY_ALSO_PAGE: Final = {"FDGrowth": "Each connection is an open file of the API process."}
_FIRST: Final = 50
_TIMES: Final = 40
_LENGTH: Final = 30 * 60
_CALM_BELOW: Final = 500
_LAST_HOUR: Final = 70 * 60
_SHARE_OF_LIMIT: Final = 0.8
_ENOUGH: Final = 30


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Let the clients come; they leave on exit."""
    prometheus, port = stack.ports["prometheus"], stack.ports["engine"]
    series = f'engine_port:connections:sum{{engine="{stack.engine}",port="{port}"}}'
    wait_for_calm(prometheus, series, _CALM_BELOW, _LAST_HOUR * stack.time_scale)
    stamp = time.time_ns()
    with growing_crowd(port, _most(stack), lambda seconds: curve(seconds / stack.time_scale)):
        yield stamp


def evidence(stack: Stack) -> bool:
    """Both windows grew."""
    series = (
        f'engine_port:connections:slower_delta{{engine="{stack.engine}",port="{stack.ports["engine"]}"}} >= {_ENOUGH}'
    )
    return query(stack.ports["prometheus"], quote(series)) is not None


def curve(seconds: float) -> float:
    """Clients after so many seconds."""
    return float(_FIRST * _TIMES ** min(seconds / _LENGTH, 1.0))


def _most(stack: Stack) -> int:
    """The end of the curve, or what the engine can hold without another alert."""
    limit = total(samples(stack.ports["sidecar"]), "enginescope_connections_limit", port=str(stack.ports["engine"]))
    end = _FIRST * _TIMES
    return end if limit is None else min(end, int(limit * _SHARE_OF_LIMIT))
