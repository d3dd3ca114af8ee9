"""The sidecar pauses for a few seconds (SIGSTOP), so that Prometheus misses some scrapes of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from enginescope.decoys.proofs import Proof
from enginescope.drill import DrillError, signal_group
from enginescope.probe import query
from enginescope.stack import Stack

COULD_PAGE: Final = ("sidecar_down", "engine_down")
SPAN: Final = "60s"
NEEDS: Final = "shipped_rules"
"""With rules that are faster, one second without a scrape is an outage."""
_PAUSE_SECONDS: Final = 4.0
_RUN_SECONDS: Final = 16.0


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Pause it again and again."""
    over = threading.Event()
    thread = threading.Thread(target=_pause, args=(stack, over), daemon=True)
    thread.start()
    try:
        yield lambda: _missed(stack)
    finally:
        over.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.killpg(stack.pids["sidecar"], signal.SIGCONT)


def _pause(stack: Stack, over: threading.Event) -> None:
    with suppress(DrillError):
        while not over.is_set():
            signal_group(stack, "sidecar", signal.SIGSTOP)
            over.wait(_PAUSE_SECONDS)
            signal_group(stack, "sidecar", signal.SIGCONT)
            over.wait(_RUN_SECONDS)


def _missed(stack: Stack) -> str | None:
    lost = f'count_over_time((up{{job="enginescope",engine="{stack.engine}"}} == 0)[1m:1s])'
    missed = query(stack.ports["prometheus"], quote(lost))
    return f"up was 0 in {missed:.0f} of 60 seconds" if missed else None
