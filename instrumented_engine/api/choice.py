"""One choice of an answer: a sequence in the core, read until its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from instrumented_engine.api.client import failure
from instrumented_engine.api.errors import ApiError
from instrumented_engine.api.logprobs import TokenEntry
from instrumented_engine.api.reader import TextReader
from instrumented_engine.api.stream import Stream
from instrumented_engine.api.timeline import Timeline

_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain, the entries of its tokens, and with the last piece of a choice why it ended."""

    index: int
    text: str
    entries: list[TokenEntry]
    finish_reason: str | None


class Choice:
    """The choice with number ``index`` of a request."""

    def __init__(self, index: int, stream: Stream, reader: TextReader, timeline: Timeline) -> None:
        self.index = index
        self.stream = stream
        self._reader = reader
        self._timeline = timeline

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Text as it is generated.

        Raises:
            ApiError: the core failed the request.
        """
        reader = self._reader
        while True:
            tokens, finished = await self.stream.take()
            before = reader.tokens
            text, entries = reader.push(tokens, self.stream.take_logprobs())
            self._timeline.output_tokens += reader.tokens - before
            if finished is not None:
                if finished.reason == "error":
                    raise failure(finished)
                self.stream.forget()
                rest, last = reader.finish()
                reason = "stop" if reader.stopped else finished.reason
                yield Piece(self.index, text + rest, entries + last, reason)
                return
            if reader.stopped:
                self.stream.stop()
                yield Piece(self.index, text, entries, "stop")
                await self._settle()
                return
            if text or entries:
                yield Piece(self.index, text, entries, None)

    async def _settle(self) -> None:
        """Wait for the stamps that only the core has; without them the trace would lack its core stages."""
        finished = None
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while finished is None:
                    _, finished = await self.stream.take()
        self.stream.forget()


async def merged(choices: Sequence[Choice]) -> AsyncGenerator[Piece, None]:
    """The pieces of all choices as they come.

    Raises:
        ApiError: the core failed one of them.
    """
    if len(choices) == 1:
        async with aclosing(choices[0].pieces()) as pieces:
            async for piece in pieces:
                yield piece
        return
    # Of size 1, so that a client that reads slowly holds back the choices instead of filling memory.
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(1)
    pumps = [asyncio.create_task(_pump(choice, queue)) for choice in choices]
    open_choices = len(choices)
    try:
        while open_choices:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                open_choices -= 1
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()


async def _pump(choice: Choice, queue: asyncio.Queue[Piece | Exception | None]) -> None:
    try:
        async for piece in choice.pieces():
            await queue.put(piece)
    except Exception as error:  # raised again where the answer is written
        await queue.put(error)
    else:
        await queue.put(None)
