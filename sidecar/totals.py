"""Counters and histograms that outlive what they count."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.snapshot import HistogramSample

_REMEMBERED: Final = 4096


class RunningTotal:
    """The sum of a counter over instances that come and go (sockets, processes); it never goes back.

    Instances that are out of sight are remembered, so that one seen again is not counted twice.
    """

    def __init__(self) -> None:
        self.value: float = 0
        self._last: dict[Hashable, float] = {}

    def update(self, values: Mapping[Hashable, float]) -> float:
        """Add what each instance counted since it was last seen; a new one counts from 0. Returns the total."""
        for key, value in values.items():
            last = self._last.pop(key, 0)
            self.value += value - last if value >= last else value
            self._last[key] = value
        while len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        return self.value


class RunningVector:
    """``RunningTotal`` for many counters of one instance at once; differences wrap like the counters."""

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size, np.uint64)
        self._last: dict[Hashable, npt.NDArray[Any]] = {}
        self.seen = False
        """Whether there was ever an instance."""

    def update(self, key: Hashable, values: list[int]) -> None:
        """Add what one instance counted since its last update; a new one counts from 0."""
        self.seen = True
        current = np.array(values, np.uint64)
        last = self._last.get(key)
        self.values += current if last is None else current - last
        self._last[key] = current

    def forget(self, key: Hashable) -> None:
        """Drop an instance that will not come back; its counts stay in the total."""
        self._last.pop(key, None)


class SampleHistogram:
    """Counts samples into fixed buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one sample."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def sample(self) -> HistogramSample:
        """The counts so far."""
        return HistogramSample(self._bounds, tuple(self._counts), self._total)
