"""Kills the core (SIGKILL) each time the sidecar has found the one that replaced it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from alerts.inside import number, process_pid
from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import query
from enginescope.stack import Stack
from telemetry.layout import CORE

MINUTES: Final = 20
"""Fifteen until the starts have left the rule's window, five during which it is kept firing."""
MAY_ALSO_PAGE: Final = {
    "RequestsShed": "requests are refused while there is no core",
    "StageLatencyBurn": "requests wait for the next core",
}
_KILLS: Final = 4
_STARTS: Final = "engine_process:process_starts:increase15m"
_ENOUGH: Final = 2.5
_POLL_SECONDS: Final = 0.2


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Kill one after the other in the background; on exit leave the last one alone and wait until it serves."""
    over = threading.Event()
    killer = threading.Thread(target=_kill, args=(stack, over))
    stamp = time.time_ns()
    killer.start()
    try:
        yield stamp
    finally:
        over.set()
        killer.join()
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """As many starts in the window as make a loop: one restart is none."""
    return (query(stack.ports["prometheus"], quote(f"max({_STARTS})")) or 0) > _ENOUGH


def _kill(stack: Stack, over: threading.Event) -> None:
    """Only what the sidecar has counted, or it would count fewer starts than there were."""
    kills, counted = 0, 0.0
    while kills < _KILLS and not over.wait(_POLL_SECONDS):
        starts = number(stack, "process_starts_total", process=CORE.role) or 0
        if starts <= counted or number(stack, "process_up", process=CORE.role) != 1:
            continue
        with suppress(DrillError, ProcessLookupError):  # it has no page yet, or not any more
            os.kill(process_pid(stack, CORE.role), signal.SIGKILL)
            kills, counted = kills + 1, starts
