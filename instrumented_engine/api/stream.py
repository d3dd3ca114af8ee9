"""What a request has received from the core and its handler has not taken yet."""

from __future__ import annotations

import asyncio
from typing import Protocol

from instrumented_engine import wire
from instrumented_engine.api.errors import ApiError, OverloadError
from instrumented_engine.api.timeline import Timeline


class Core(Protocol):
    """Where a request is."""

    def forget(self, stream: Stream) -> bool:
        """The request is over; whether it was still known."""

    def abort(self, stream: Stream) -> None:
        """Tell the core to end it."""


class Stream:
    """Lives on the event loop. A handler that is held up by its client finds everything since in one piece."""

    def __init__(self, request_id: int, timeline: Timeline, core: Core) -> None:
        self.request_id = request_id
        self.timeline = timeline
        self._core = core
        self._tokens: list[int] = []
        self._logprobs: list[wire.TokenLogprobs] = []
        self._finished: wire.Finished | None = None
        self._error: ApiError | None = None
        self._changed = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None

    def put(
        self, tokens: list[int], finished: wire.Finished | None, logprobs: wire.TokenLogprobs | None = None
    ) -> None:
        """Add what arrived."""
        self._tokens += tokens
        if logprobs is not None:
            self._logprobs.append(logprobs)
        self._finished = self._finished or finished
        self._changed.set()

    def fail(self, error: ApiError) -> None:
        """End the request with an error that is not the core's."""
        if isinstance(error, OverloadError):
            self.timeline.shed_reason = error.reason
        self._error = error
        self._changed.set()

    def abort(self) -> None:
        """Nobody waits for this request any more."""
        if self.forget():
            self.stop()

    def stop(self) -> None:
        """End a request whose answer is complete; what the core knows of it still comes home."""
        self._core.abort(self)

    def forget(self) -> bool:
        """The request is over; whether it was still known."""
        return self._core.forget(self)

    async def take(self) -> tuple[list[int], wire.Finished | None]:
        """Everything since the last call; waits for something.

        Raises:
            ApiError: the request ended without its core.
        """
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error
        tokens, self._tokens = self._tokens, []
        return tokens, self._finished

    def take_logprobs(self) -> list[wire.TokenLogprobs]:
        """Those of the tokens that ``take`` has just returned; empty when the request did not ask for them."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs
