"""An adaptive rate limit after TCP Vegas: the engine's own queueing delay says how many requests it can take.

Which time to measure decides what the limit does. The time of a whole request depends on how many tokens were asked
for, and the time to the first token on the prompt's length. Here it is the *queue wait*, from the hand-over to the
input socket to the first step: it is near zero in an engine with room, whatever is asked of it, and grows only by
queueing. A step in progress delays the next request by its remaining time, though, so that an engine with long steps
(large batches, long prefills, a CPU) has waits above 20 ms in normal use and would be throttled. The limit is therefore
off unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LOW_SECONDS: Final = 0.005
HIGH_SECONDS: Final = 0.020
RAISE: Final = 1.10
LOWER: Final = 0.75
MIN_SAMPLES: Final = 100
INTERVAL_SECONDS: Final = 3.0
BURST: Final = 0.10
MIN_RATE: Final = 1.0
MAX_RATE: Final = 100_000.0


class VegasLimiter:
    """A token bucket whose rate follows the round-trip times that it is told. One thread only."""

    def __init__(self, clock: Callable[[], float], rate: float = 100.0) -> None:
        """``clock`` gives seconds that never go back; ``rate`` is requests per second to begin with."""
        self._clock = clock
        self.rate = rate
        self._tokens = self.burst
        self._filled_at = self._adjusted_at = clock()
        self._minimum = float("inf")
        self._sum = 0.0
        self._samples = 0
        self._admitted = 0

    @property
    def burst(self) -> float:
        """Requests that may come at once: 10 % of a second's, and at least one."""
        return max(self.rate * BURST, 1.0)

    def allow(self) -> bool:
        """Take a place for one request, if there is one."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        self._admitted += 1
        return True

    def observe(self, seconds: float) -> None:
        """One request's round-trip time; the rate changes at most every 3 s and after 100 samples."""
        self._minimum = min(self._minimum, seconds)
        self._sum += seconds
        self._samples += 1
        elapsed = self._clock() - self._adjusted_at
        if self._samples >= MIN_SAMPLES and elapsed >= INTERVAL_SECONDS:
            self._adjust(self._sum / self._samples - self._minimum, self._admitted / elapsed)

    def _adjust(self, queueing: float, used_rate: float) -> None:
        # A limit that nobody has reached says nothing about what is above it: raising it through a quiet hour
        # would leave no limit at all for the storm that follows (RFC 7661 has the same rule for TCP).
        if queueing < LOW_SECONDS and used_rate >= self.rate / 2:
            self.rate = min(self.rate * RAISE, MAX_RATE)
        elif queueing > HIGH_SECONDS:
            self.rate = max(self.rate * LOWER, MIN_RATE)
        self._adjusted_at = self._clock()
        self._sum, self._samples, self._admitted = 0.0, 0, 0
