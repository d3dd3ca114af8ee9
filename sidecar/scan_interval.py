"""How often the connections are scanned: every second while that is cheap, more rarely when there are many."""

from __future__ import annotations

from typing import Final

_SHARE_OF_A_CORE: Final = 0.01
_SHORTEST: Final = 1.0
_LONGEST: Final = 5.0
_EARLY: Final = 0.05
"""A snapshot that comes this much before the scan is due takes it along."""


class ScanInterval:
    """Keeps scans at one hundredth of a core, but never further apart than five seconds."""

    def __init__(self) -> None:
        self.seconds = _SHORTEST
        self._due = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to scan now (monotonic seconds)."""
        return now >= self._due - _EARLY

    def note(self, started: float, cpu_seconds: float) -> None:
        """Take in what the scan that started then has cost."""
        self.seconds = min(max(cpu_seconds / _SHARE_OF_A_CORE, _SHORTEST), _LONGEST)
        self._due = started + self.seconds
