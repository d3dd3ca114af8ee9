"""What every process of the engine does at its start."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

from telemetry.layout import LOG_LEVELS
from telemetry.scoreboard import Writer

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the launcher dies, even by SIGKILL (prctl(2), PR_SET_PDEATHSIG)."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the call
        sys.exit(1)


def start_logging(level: str) -> None:
    """Log to stderr, one line each."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


class _CountingHandler(logging.Handler):
    """Counts records into a page. ``handle`` holds the handler's lock, so that every slot has one writer at a time."""

    def __init__(self, page: Writer) -> None:
        super().__init__(logging.INFO)
        self._slots = page.slots
        self._by_level = [
            (getattr(logging, level.upper()), page.index(f"log_{level}")) for level in reversed(LOG_LEVELS)
        ]

    def emit(self, record: logging.LogRecord) -> None:
        slot = next((index for level, index in self._by_level if record.levelno >= level), None)
        if slot is not None:
            self._slots[slot] += 1


def count_logs(page: Writer) -> None:
    """Count this process's log records by level on its page."""
    logging.getLogger().addHandler(_CountingHandler(page))


def end_with_sentence(program: str, error: Exception) -> int:
    """Print one sentence; the exit status for bad input."""
    print(f"{program}: {error}", file=sys.stderr)
    return 2
