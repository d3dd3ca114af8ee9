"""The clocks of the sidecar, injected so that tests decide what time it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Monotonic seconds, wall-clock nanoseconds, CPU seconds of the calling thread."""

    monotonic: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    thread_cpu: Callable[[], float] = time.thread_time
