"""Stops the API process (SIGSTOP) while it holds connections, and closes their other ends: CLOSE_WAIT that it owns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from alerts.crowd import Crowd, api_pid, crowd, open_files
from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack

MAY_ALSO_PAGE: Final = {"ProcessFrozen": "the API process is stopped for longer than three seconds"}
MINUTES: Final = 7
"""One until the sockets are old, five during which the rule is kept firing."""
_CLIENTS: Final = 64
_ENOUGH: Final = 20
_ACCEPT_SECONDS: Final = 10
_STOP_SECONDS: Final = 5


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Let clients in, stop the process, let the clients go; continue it on exit."""
    pid = api_pid(stack)
    with crowd(stack.ports["engine"], _CLIENTS) as clients:
        _let_in(pid, clients)
        stamp = time.time_ns()
        try:
            os.kill(pid, signal.SIGSTOP)
            _wait_until_stopped(pid)
            clients.leave()
            yield stamp
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The sidecar counts as many as the rule wants."""
    port = str(stack.ports["engine"])
    owned = total(samples(stack.ports["sidecar"]), "enginescope_close_wait_sockets", port=port, kind="owned")
    return owned is not None and owned >= _ENOUGH


def _let_in(pid: int, clients: Crowd) -> None:
    """Connect, and wait until the process has accepted enough; the rest would not be its own."""
    before = open_files(pid)
    clients.grow_to(_CLIENTS)
    deadline = time.monotonic() + _ACCEPT_SECONDS
    while open_files(pid) < before + _CLIENTS // 2:
        if time.monotonic() > deadline:
            raise DrillError(f"the API process did not accept {_CLIENTS} connections within {_ACCEPT_SECONDS} s")
        time.sleep(0.05)


def _wait_until_stopped(pid: int) -> None:
    """The signal takes a moment; a process that still runs would close what its clients close."""
    deadline = time.monotonic() + _STOP_SECONDS
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        if time.monotonic() > deadline:
            raise DrillError(f"the API process (pid {pid}) did not stop within {_STOP_SECONDS} s")
        time.sleep(0.01)
