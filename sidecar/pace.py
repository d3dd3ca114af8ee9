"""How often something is done that need not be done every second."""

from __future__ import annotations

from typing import Final

_SHORTEST: Final = 1.0
_EARLY: Final = 0.05
"""A snapshot that comes this much before the time takes it along."""


class Pace:
    """Keeps something at a share of a core, but never further apart than ``longest`` seconds."""

    def __init__(self, share: float, longest: float) -> None:
        self.seconds = _SHORTEST
        self._share = share
        self._longest = longest
        self._due = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to do it now (monotonic seconds)."""
        return now >= self._due - _EARLY

    def note(self, started: float, cpu_seconds: float) -> None:
        """Take in what the turn that started then has cost."""
        self.seconds = min(max(cpu_seconds / self._share, _SHORTEST), self._longest)
        self._due = started + self.seconds
