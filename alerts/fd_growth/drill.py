"""Makes the API process leak open files for real: each idle connection that the drill opens costs it one.

Ten a minute; with rules that are twenty times faster, two hundred.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from alerts.calm import wait_for_calm
from alerts.crowd import api_pid, growing_crowd, open_files
from enginescope.probe import query
from enginescope.stack import Stack

MINUTES: Final = 50
"""Thirty for the process to be old enough, twenty of leaking."""
MAY_ALSO_PAGE: Final = {"ConnectionGrowth": "The files that leak here are connections, which grow just as steadily."}
_A_SECOND: Final = 10 / 60
_MOST: Final = round(MINUTES * 60 * _A_SECOND)
_CALM_ABOVE_NOW: Final = 300
_LAST_HOUR: Final = 80 * 60
_SHARE_OF_LIMIT: Final = 0.8
_ENOUGH: Final = 50


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Leak; everything is closed on exit."""
    prometheus, pid = stack.ports["prometheus"], api_pid(stack)
    files = open_files(pid)
    series = f'engine_process:open_fds:max{{engine="{stack.engine}",process="api"}}'
    wait_for_calm(prometheus, series, files + _CALM_ABOVE_NOW, _LAST_HOUR * stack.time_scale)
    most = min(_MOST, int(_soft_limit(pid) * _SHARE_OF_LIMIT) - files)
    stamp = time.time_ns()
    with growing_crowd(stack.ports["engine"], most, lambda seconds: seconds * _A_SECOND / stack.time_scale):
        yield stamp


def evidence(stack: Stack) -> bool:
    """Both windows grew."""
    series = f'engine_process:open_fds:slower_delta{{engine="{stack.engine}",process="api"}} >= {_ENOUGH}'
    return query(stack.ports["prometheus"], quote(series)) is not None


def _soft_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
