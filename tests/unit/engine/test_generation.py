"""A request with its choices against a client without sockets."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import pytest

from instrumented_engine import wire
from instrumented_engine.api.choice import Piece
from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.errors import ApiError
from instrumented_engine.api.generation import Generation, chat_tokens
from instrumented_engine.api.protocol import ChatCompletionRequest, CompletionRequest
from instrumented_engine.api.stream import Stream
from instrumented_engine.api.timeline import Timeline
from instrumented_engine.model.tokenizers import ByteTokenizer


class FakeClient:
    """Takes submits, and is the core that the streams are told of; the test plays what comes back."""

    max_model_len = 1000

    def __init__(self) -> None:
        self.submitted: list[wire.Submit] = []
        self.streams: list[Stream] = []
        self.calls: list[tuple[str, int]] = []

    def submit(self, messages: Sequence[wire.Submit], timeline: Timeline) -> list[Stream]:
        self.submitted += messages
        self.streams += [Stream(message.request_id, timeline, self) for message in messages]
        return self.streams

    def _note(self, what: str, stream: Stream) -> None:
        self.calls.append((what, self.streams.index(stream)))

    def abort(self, stream: Stream) -> None:
        self._note("abort", stream)
        stream.put([], ended("abort"))

    def forget(self, stream: Stream) -> bool:
        known = ("forget", self.streams.index(stream)) not in self.calls
        self._note("forget", stream)
        return known


def ended(reason: str) -> wire.Finished:
    return wire.Finished(1, reason, [1, 2, 3, 4], (1, 1, 1))


def generation(client: FakeClient, **body: Any) -> Generation:
    asked = CompletionRequest(prompt="x", **body)
    return Generation(cast("CoreClient", client), ByteTokenizer(), "dummy", Timeline(None, chat=False), asked, [1])


def run(coroutine: Coroutine[Any, Any, list[Piece]]) -> list[Piece]:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


async def read(started: Generation) -> list[Piece]:
    return [piece async for piece in started.pieces()]


def test_choices_have_numbers_and_seeds_of_their_own() -> None:
    client = FakeClient()
    started = generation(client, n=3, seed=2**63 - 2)
    assert [message.seed for message in client.submitted] == [2**63 - 2, 2**63 - 1, 0]
    assert len({message.request_id for message in client.submitted}) == 3
    assert started.request_id == f"cmpl-{client.submitted[0].request_id:014x}"


def test_a_stop_string_ends_the_sequence_and_waits_for_its_stamps() -> None:
    async def play() -> list[Piece]:
        client = FakeClient()
        started = generation(client, stop="END", max_tokens=50)
        client.streams[0].put(list(b"one EN"), None)
        pieces = started.pieces()
        first = await anext(pieces)
        client.streams[0].put(list(b"D two"), None)
        rest = [piece async for piece in pieces]
        assert client.calls == [("abort", 0), ("forget", 0)]
        assert started.timeline.output_tokens == len("one END")
        return [first, *rest]

    assert [(piece.text, piece.finish_reason) for piece in run(play())] == [("one ", None), ("", "stop")]


def test_a_stop_string_in_the_last_tokens_is_the_reason() -> None:
    async def play() -> list[Piece]:
        client = FakeClient()
        started = generation(client, stop="END", max_tokens=50)
        client.streams[0].put(list(b"one END"), ended("length"))
        return await read(started)

    assert [(piece.text, piece.finish_reason) for piece in run(play())] == [("one ", "stop")]


def test_what_was_held_back_comes_at_the_end() -> None:
    async def play() -> list[Piece]:
        client = FakeClient()
        started = generation(client, stop="END", max_tokens=50)
        client.streams[0].put(list(b"one EN"), ended("length"))
        return await read(started)

    assert [(piece.text, piece.finish_reason) for piece in run(play())] == [("one EN", "length")]


def test_a_failed_choice_fails_the_request_and_ends_the_others() -> None:
    async def play() -> list[Piece]:
        client = FakeClient()
        started = generation(client, n=2)
        client.streams[0].put(list(b"fine"), None)
        client.streams[1].put([], ended("error"))
        with pytest.raises(ApiError, match="ended the request with an error"):
            await read(started)
        assert client.calls == [("forget", 0), ("abort", 0), ("forget", 1), ("abort", 1)]
        return []

    run(play())


def test_a_slow_reader_holds_the_choices_back() -> None:
    async def play() -> list[Piece]:
        client = FakeClient()
        started = generation(client, n=2)
        pieces = started.pieces()
        for stream in client.streams:
            stream.put(list(b"a"), None)
        first = await anext(pieces)
        for _ in range(5):
            await asyncio.sleep(0)
            for stream in client.streams:
                stream.put(list(b"b"), None)
        for stream in client.streams:
            stream.put([], ended("length"))
        rest = [piece async for piece in pieces]
        texts = ["".join(piece.text for piece in [first, *rest] if piece.index == index) for index in (0, 1)]
        assert texts == ["abbbbb", "abbbbb"]
        return rest

    assert len(run(play())) < 8  # what came while nobody read was joined


def test_messages_that_the_template_refuses_are_the_clients_error() -> None:
    class Strict(ByteTokenizer):
        def chat_prompt(self, messages: Any) -> str:
            raise ValueError("roles must alternate")

    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(ApiError, match="messages: roles must alternate") as refused:
        chat_tokens(Strict(), body)
    assert refused.value.error_class.status == 400
    assert chat_tokens(ByteTokenizer(), body)[:5] == list(b"<|im_")
