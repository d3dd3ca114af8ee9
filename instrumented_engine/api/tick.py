"""What the event loop does ten times a second: prove that it runs, and look after the cores."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from instrumented_engine import faults
from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.timeline import Recorder
from telemetry.layout import API
from telemetry.scoreboard import Writer

_log = logging.getLogger(__name__)
_TICK_SECONDS: Final = 0.1
_CHORE_TICKS: Final = 10
_TICK, _PROBLEMS = API.slot_index["loop_tick_ns"], API.slot_index["health_problems"]

Chore = Callable[[], object]


class Tick:
    """The tick and the chores that hang on it."""

    def __init__(self, client: CoreClient, page: Writer, recorder: Recorder, chores: Sequence[Chore]) -> None:
        """``chores`` are done about once a second."""
        self._client = client
        self._slots = page.slots
        self._lag = page.histogram("event_loop_lag")
        self._chores = (recorder.publish_ages, *chores)
        self._count = 0
        self._problems: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tick while inside."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            started = time.monotonic_ns()
            await asyncio.sleep(_TICK_SECONDS)
            self._lag.observe(time.monotonic_ns() - started - int(_TICK_SECONDS * 1e9))
            self._slots[_TICK] = time.time_ns()
            self._look()
            if faults.ARMED:
                asyncio.get_running_loop().call_soon(faults.stall, "block_loop")

    def _look(self) -> None:
        self._client.check_cores(time.monotonic())
        self._say(self._client.problems)
        self._count += 1
        if self._count % _CHORE_TICKS == 0:
            for chore in self._chores:
                chore()

    def _say(self, problems: list[str]) -> None:
        """Log a change from healthy to stuck and back, not every tick in between."""
        if problems and not self._problems:
            _log.error("unhealthy: %s", "; ".join(problems))
        elif self._problems and not problems:
            _log.warning("healthy again")
        self._problems = problems
        self._slots[_PROBLEMS] = len(problems)
