"""Waiting until a rule that compares with the past can fire, for drills of failures that develop slowly."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import quote

from enginescope.probe import ProbeError, query

_WAIT_AT_MOST: Final = 300.0


def wait_for_calm(prometheus: int, series: str, level: float, length: float) -> None:
    """Wait until a series was below a level for so many seconds; growth below an earlier height is no alarm.

    Raises:
        ProbeError: that would take more than five minutes.
    """
    expression = quote(f"max_over_time({series}[{max(length, 1):.0f}s])")
    while (highest := query(prometheus, expression) or 0) > level:
        if length > _WAIT_AT_MOST:
            raise ProbeError(
                f"{series} was at {highest:.0f} within the last {length / 60:.0f} minutes, and growth below that is no "
                f"alarm: wait so long, or start a new stack"
            )
        time.sleep(1)
