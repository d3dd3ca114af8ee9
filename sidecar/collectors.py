"""Running collectors so that one failure costs one ``success=0``, and saying once what cannot be seen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from sidecar.snapshot import CollectorRun

log = logging.getLogger("sidecar")
P = ParamSpec("P")
T = TypeVar("T")


class NotVisibleError(Exception):
    """The collector may not see what it collects, which is no failure: its facts are absent."""


class Collectors:
    """Runs collectors by name and keeps how each last run went."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.runs: dict[str, CollectorRun] = {}
        self._timer = timer

    def run(self, name: str, collect: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What the collector returned; None when it failed, which is logged once until it succeeds again."""
        started = self._timer()
        result: T | None = None
        try:
            with suppress(NotVisibleError):
                result = collect(*args, **kwargs)
        except Exception as error:  # one broken collector must not stop the others
            self._fail(name, error, self._timer() - started)
            return None
        self.runs[name] = CollectorRun(success=True, seconds=self._timer() - started)
        return result

    def _fail(self, name: str, error: Exception, seconds: float) -> None:
        known = self.runs.get(name)
        if known is None or known.success:
            log.error("collector %s failed: %s: %s", name, type(error).__name__, error)
        self.runs[name] = CollectorRun(success=False, seconds=seconds)


class Visibility:
    """What the sidecar may see of its target. A hidden fact is logged once, with what to grant."""

    def __init__(self) -> None:
        self.facts: dict[str, bool] = {}

    def show(self, fact: str) -> None:
        """The fact can be seen."""
        self.facts[fact] = True

    def hide(self, fact: str, advice: str) -> None:
        """The fact cannot be seen; ``advice`` is one sentence for the log."""
        if self.facts.get(fact, True):
            log.warning("%s", advice)
        self.facts[fact] = False
