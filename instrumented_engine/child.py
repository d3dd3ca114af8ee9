"""A process under the launcher: started, started again when it dies, replaced, stopped."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

_log = logging.getLogger("instrumented_engine")
_BACKOFF_SECONDS: Final = (0.5, 1, 2, 4, 8, 15, 30)
_STEADY_SECONDS: Final = 60.0
"""One that ran so long before it died starts at the shortest delay again."""
_BAD_INPUT: Final = 2
STOP_SECONDS: Final = 3.0
"""What a process that has nothing left to do gets to leave. One in the middle of a step gets more."""


class Child:
    """One process under the launcher."""

    def __init__(self, module: str, flags: Callable[[int], list[str]], name: str = "") -> None:
        """``flags`` gives the command line for the n-th restart; ``name`` is for the log."""
        self.module = module
        self.name = name or module
        self._flags = flags
        self.restarts = 0
        self._deaths = 0
        self._due = 0.0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        return subprocess.Popen([sys.executable, "-m", self.module, *self._flags(self.restarts)])

    def start_again(self) -> None:
        """After it was stopped."""
        self.restarts += 1
        self._due = 0.0
        self.process = self._start()

    @property
    def refused(self) -> bool:
        """Whether it ended because of its settings, so that starting it again would not help.

        One that has run before is tried again: a model that was replaced by a bad file can be replaced by a good one.
        """
        return self.process.poll() == _BAD_INPUT and self.restarts == 0

    def restart_when_due(self) -> None:
        """Start a dead child again, later and later while it keeps dying."""
        status = self.process.poll()
        if status is None:
            return
        now = time.monotonic()
        if not self._due:
            self._deaths = 0 if now - self._started > _STEADY_SECONDS else self._deaths
            delay = _BACKOFF_SECONDS[min(self._deaths, len(_BACKOFF_SECONDS) - 1)]
            self._deaths += 1
            _log.error("%s ended with status %d; starting it again in %g s", self.name, status, delay)
            self._due = now + delay
        elif now >= self._due:
            self.start_again()

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self.process.poll() is None

    def kill(self, seconds: float) -> None:
        """It had ``seconds`` to leave."""
        _log.error("%s (pid %d) did not stop within %g s and is killed", self.name, self.process.pid, seconds)
        self.process.kill()
        self.process.wait()


def stop(children: Sequence[Child], seconds: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """Ask them all to leave at once, and kill who has not after ``seconds``.

    When there is a hurry they are asked once more, and then have ``STOP_SECONDS`` at most.
    """
    _ask(children)
    limit, started, asked_again = seconds, time.monotonic(), False
    while any(child.running for child in children) and time.monotonic() < started + limit:
        if hurry() and not asked_again:
            asked_again = True
            _ask(children)
            limit = min(limit, time.monotonic() - started + STOP_SECONDS)
        time.sleep(0.02)
    for child in children:
        if child.running:
            child.kill(limit)


def _ask(children: Sequence[Child]) -> None:
    for child in children:
        if child.running:
            child.process.terminate()
