"""A process under the launcher: started, started again when it dies, replaced, stopped."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("instrumented_engine")
_BACKOFF_SECONDS: Final = (0.5, 1, 2, 4, 8, 15, 30)
_BAD_INPUT: Final = 2
STOP_SECONDS: Final = 2.5


class Child:
    """One process under the launcher."""

    def __init__(self, module: str, flags: Callable[[int], list[str]]) -> None:
        """``flags`` gives the command line for the n-th restart."""
        self.module = module
        self._flags = flags
        self.restarts = 0
        self._due = 0.0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", self.module, *self._flags(self.restarts)])

    def _start_again(self) -> None:
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
            delay = _BACKOFF_SECONDS[min(self.restarts, len(_BACKOFF_SECONDS) - 1)]
            _log.error("%s ended with status %d; starting it again in %g s", self.module, status, delay)
            self._due = now + delay
        elif now >= self._due:
            self._start_again()

    def replace(self) -> None:
        """Stop it and start it again at once."""
        self.stop(STOP_SECONDS)
        self._start_again()

    def stop(self, seconds: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask it to leave, once more when there is a hurry, and kill it after ``seconds``."""
        if self.process.poll() is None:
            self.process.terminate()
        deadline, asked_again = time.monotonic() + seconds, False
        while self.process.poll() is None and time.monotonic() < deadline:
            if hurry() and not asked_again:
                asked_again = True
                self.process.terminate()
            time.sleep(0.02)
        if self.process.poll() is None:
            _log.error("process %d did not stop within %g s and is killed", self.process.pid, seconds)
            self.process.kill()
            self.process.wait()
