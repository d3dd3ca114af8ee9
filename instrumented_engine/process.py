"""What every process of the engine does at its start."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

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


def end_with_sentence(program: str, error: Exception) -> int:
    """Print one sentence; the exit status for bad input."""
    print(f"{program}: {error}", file=sys.stderr)
    return 2
