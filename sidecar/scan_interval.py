"""How often something is scanned whose cost depends on the engine: every second while that is cheap, else more rarely.

Of connections there are two scans. When there are so many that their share of a core is exceeded, detail (TCP_INFO)
goes first: it is taken every few seconds and then not at all. Only then do the scans themselves move apart.
"""

from __future__ import annotations

from typing import Final

_SHARE_OF_A_CORE: Final = 0.01
_SHORTEST: Final = 1.0
_LONGEST: Final = 5.0
_BACK_AT: Final = 4.0
"""Detail that was given up comes back when it could be taken this often, so that it does not come and go."""
_EARLY: Final = 0.05
"""A snapshot that comes this much before the scan is due takes it along."""
_RATIO: Final = (1.05, 1.4, 3.0)
"""CPU time of a scan with detail to one without: least, first guess, most that one measurement is believed."""


class ScanInterval:
    """Keeps scans at a share of a core, but never further apart than ``longest`` seconds."""

    def __init__(self, share: float = _SHARE_OF_A_CORE, longest: float = _LONGEST) -> None:
        self._share, self._longest = share, longest
        self.seconds = _SHORTEST
        """Between two scans."""
        self._due = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to scan now (monotonic seconds)."""
        return now >= self._due - _EARLY

    def note(self, started: float, cpu_seconds: float) -> None:
        """Take in what the scan that started then has cost."""
        self.seconds = min(max(cpu_seconds / self._share, _SHORTEST), self._longest)
        self._due = started + self.seconds


class DetailInterval:
    """Plans two kinds of scan that together keep to one share of a core."""

    def __init__(self) -> None:
        self._scan = ScanInterval()
        self.detail_seconds = _SHORTEST
        """Between two scans with detail; 0 when it is not taken at all."""
        self._detail_due = 0.0
        self._plain = 0.0
        self._ratio = _RATIO[1]

    @property
    def seconds(self) -> float:
        """Between two scans."""
        return self._scan.seconds

    def is_due(self, now: float) -> bool:
        """Whether to scan now (monotonic seconds)."""
        return self._scan.is_due(now)

    def wants_detail(self, now: float) -> bool:
        """Whether a scan now is to ask for detail."""
        return self.detail_seconds > 0 and now >= self._detail_due - _EARLY

    def note(self, started: float, cpu_seconds: float, detailed: bool) -> None:
        """Take in what the scan that started then has cost."""
        if detailed and self._plain and self.detail_seconds > self.seconds:
            # The one before was plain: what detail adds is measured, not guessed.
            self._ratio = min(max(cpu_seconds / self._plain, _RATIO[0]), _RATIO[2])
        self._plain = cpu_seconds / self._ratio if detailed else cpu_seconds
        self._scan.note(started, self._plain)
        self.detail_seconds = self._affordable_detail()
        if detailed:
            self._detail_due = started + self.detail_seconds

    def _affordable_detail(self) -> float:
        left = _SHARE_OF_A_CORE - self._plain / self.seconds
        extra = self._plain * (self._ratio - 1)
        limit = _LONGEST if self.detail_seconds else _BACK_AT
        return max(extra / left, self.seconds) if left > 0 and extra <= left * limit else 0.0
