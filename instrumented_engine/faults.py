"""Faults on purpose, for tests and drills only.

Everything here is inert unless the process was started with ``ENGINESCOPE_FAULTS_DIR``: without that variable ``ARMED``
is False, no file is looked for, and nothing a client or an operator can do later turns the hooks on. With it, a file in
that directory triggers the fault of its name, once: the process that meets it removes it first. Its text is the number
of seconds where one is needed (default 5). While such a fault lasts, a file ``NAME.now`` lies there; taking that away
ends it. A name followed by ``@core-1`` is for that core alone.

================  =======  ============================================================
file              process  what happens
================  =======  ============================================================
``block_loop``    api      the event loop does nothing for N seconds
``receiver``      api      the thread that receives outputs ends with an exception
``rest``          api      that thread does nothing for N seconds after its next message
``input_thread``  core     the input thread ends with an exception at its next message
``output_thread`` core     the output thread ends with an exception at its next message
``stall_core``    core     the main thread does nothing for N seconds, inside a step
``encode``        core     the output thread takes N seconds longer for its next message
================  =======  ============================================================
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.environ.get("ENGINESCOPE_FAULTS_DIR", "")
ARMED: Final = bool(_DIRECTORY)
_DEFAULT_SECONDS: Final = 5.0
_SLICE_SECONDS: Final = 0.05


class InjectedFaultError(RuntimeError):
    """A thread was asked to die."""


_process = ""


def name_process(name: str) -> None:
    """What this process is called in file names that are for one process alone."""
    global _process  # noqa: PLW0603 - set once at start
    _process = name


def _triggered(name: str) -> str | None:
    for path in (Path(_DIRECTORY, name), Path(_DIRECTORY, f"{name}@{_process}")):
        try:
            text = path.read_text()
            path.unlink()
        except FileNotFoundError:
            continue
        return text
    return None


def stall(name: str) -> None:
    """Sleep when the fault is triggered, holding up whatever this thread does; nothing when not armed."""
    if ARMED and (text := _triggered(name)) is not None:
        _sleep(Path(_DIRECTORY, f"{name}.now"), float(text.strip() or _DEFAULT_SECONDS))


def _sleep(marker: Path, seconds: float) -> None:
    marker.touch()
    deadline = time.monotonic() + seconds
    while marker.exists() and time.monotonic() < deadline:
        time.sleep(_SLICE_SECONDS)
    marker.unlink(missing_ok=True)


def die(name: str) -> None:
    """Raise when the fault is triggered; nothing when not armed.

    Raises:
        InjectedFaultError: this thread must end.
    """
    if ARMED and _triggered(name) is not None:
        raise InjectedFaultError(f"{name} ends because a file in ENGINESCOPE_FAULTS_DIR asks for it")
