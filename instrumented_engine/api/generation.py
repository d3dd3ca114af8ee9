"""One completion from its prompt to its last token, as one JSON body or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.responses import Response

from instrumented_engine import wire
from instrumented_engine.api.admission import NO_CORE
from instrumented_engine.api.choice import Choice, Piece, merged
from instrumented_engine.api.client import CoreClient, new_request_id
from instrumented_engine.api.errors import PROTOCOL, ApiError, OverloadError
from instrumented_engine.api.protocol import ChatCompletionRequest, GenerationRequest, choice, usage
from instrumented_engine.api.reader import TextReader
from instrumented_engine.api.timeline import CLIENT_CLOSED_REQUEST, Timeline
from instrumented_engine.model.tokenizers import Tokenizer
from telemetry.stages import RequestFlag, Stamp

_DEFAULT_MAX_TOKENS = 16  # of the completions API; a chat answer may take what the model has room for


class Generation:
    """A submitted request and how its answer is written."""

    def __init__(
        self,
        client: CoreClient,
        tokenizer: Tokenizer,
        model_name: str,
        timeline: Timeline,
        body: GenerationRequest,
        prompt: list[int],
    ) -> None:
        """Check and submit.

        Raises:
            ApiError: the prompt does not fit, or the core takes no requests.
        """
        timeline.stamp(Stamp.PARSED)
        self.chat = isinstance(body, ChatCompletionRequest)
        number = new_request_id()
        self.request_id = timeline.request_id = f"{'chatcmpl' if self.chat else 'cmpl'}-{number:014x}"
        self.timeline = timeline
        self.body = body
        self._client = client
        self._model_name = model_name
        self._created = int(time.time())
        timeline.prompt_tokens = len(prompt)
        if body.stream:
            timeline.flags |= RequestFlag.STREAM
        self.choices: list[Choice] = []
        self._submit(self._message(number, prompt, tokenizer), tokenizer)

    def _submit(self, message: wire.Submit, tokenizer: Tokenizer) -> None:
        """One sequence for each choice; they share the prompt's blocks in the prefix cache."""
        messages = [_of_choice(message, index) for index in range(self.body.n)]
        for index, stream in enumerate(self._client.submit(messages, self.timeline)):
            reader = TextReader(tokenizer, self.body.stop_strings, self.body.wanted_logprobs)
            self.choices.append(Choice(index, stream, reader, self.timeline))

    def _message(self, number: int, prompt: list[int], tokenizer: Tokenizer) -> wire.Submit:
        body = self.body
        if any(token >= tokenizer.vocab_size for token in prompt):
            raise ApiError(PROTOCOL, f"a prompt token is outside the vocabulary of {tokenizer.vocab_size}", "prompt")
        if not prompt:
            raise ApiError(PROTOCOL, "the prompt is empty", "prompt")
        return wire.Submit(
            request_id=number,
            prompt=wire.pack_tokens(prompt),
            max_tokens=self._max_tokens(len(prompt)),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=body.seed,
            stop_token_ids=[] if body.ignore_eos else sorted(tokenizer.eos_ids),
            trace_id=self.timeline.trace_id,
            span_id=self.timeline.span_id,
            logprobs=self.body.wanted_logprobs,
        )

    def _max_tokens(self, prompt_tokens: int) -> int:
        limit = self._client.max_model_len
        if limit is None:
            raise OverloadError("no_core", NO_CORE)
        asked = self.body.max_tokens
        if isinstance(self.body, ChatCompletionRequest):
            asked = asked or self.body.max_completion_tokens or max(limit - prompt_tokens, 1)
        asked = asked or _DEFAULT_MAX_TOKENS
        if prompt_tokens + asked > limit:
            raise ApiError(
                PROTOCOL,
                f"the model's limit is {limit} tokens; the prompt has {prompt_tokens} and max_tokens asks for {asked}",
                "max_tokens",
            )
        return asked

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Text as it is generated, then the finish reason with the last piece of each choice.

        Raises:
            ApiError: the core failed the request.
        """
        try:
            async with aclosing(merged(self.choices)) as pieces:
                async for piece in pieces:
                    yield piece
        except ApiError:
            self.end()
            raise

    def end(self) -> None:
        """Stop the core's work on what is still open."""
        for opened in self.choices:
            opened.stream.abort()

    def abandon(self) -> None:
        """The client went away."""
        self.timeline.aborted = True
        self.timeline.status = CLIENT_CLOSED_REQUEST
        self.end()

    def choice(self, piece: Piece, *, streaming: bool = False) -> dict[str, Any]:
        """One choice of a response or of a streamed chunk."""
        return choice(piece, chat=self.chat, streaming=streaming, logprobs=self.body.wanted_logprobs >= 0)

    def envelope(self, choices: list[dict[str, Any]], *, streaming: bool = False) -> dict[str, Any]:
        """A response, or a chunk of a streamed one."""
        kind = ("chat.completion.chunk" if streaming else "chat.completion") if self.chat else "text_completion"
        return {
            "id": self.request_id,
            "object": kind,
            "created": self._created,
            "model": self._model_name,
            "choices": choices,
        }

    def usage(self) -> dict[str, Any]:
        """The usage object as of now."""
        timeline = self.timeline
        return usage(timeline.prompt_tokens, timeline.output_tokens, max(timeline.cached_tokens, 0))


def _of_choice(message: wire.Submit, index: int) -> wire.Submit:
    """The first choice is the request itself; the others get numbers and seeds of their own."""
    if not index:
        return message
    seed = None if message.seed is None else (message.seed + index) % 2**63
    return msgspec.structs.replace(message, request_id=new_request_id(), seed=seed)


def chat_tokens(tokenizer: Tokenizer, body: ChatCompletionRequest) -> list[int]:
    """The prompt of a conversation.

    Raises:
        ApiError: the model's chat template refuses it.
    """
    try:
        return tokenizer.encode(tokenizer.chat_prompt([(message.role, message.text) for message in body.messages]))
    except ValueError as error:
        raise ApiError(PROTOCOL, f"messages: {error}", "messages") from error


async def respond(request: Request, generation: Generation) -> Response:
    """The answer in the form the client asked for."""
    headers = {"x-request-id": generation.request_id}
    if generation.body.stream:
        return StreamingResponse(_events(generation), media_type="text/event-stream", headers=headers)
    answer = asyncio.create_task(_complete(generation))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            generation.abandon()
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return JSONResponse(answer.result(), headers=headers)
    finally:
        answer.cancel()
        gone.cancel()


async def _complete(generation: Generation) -> dict[str, Any]:
    pieces: list[list[Piece]] = [[] for _ in generation.choices]
    async for piece in generation.pieces():
        pieces[piece.index].append(piece)
    choices = [generation.choice(_joined(own)) for own in pieces]
    return generation.envelope(choices) | {"usage": generation.usage()}


def _joined(pieces: list[Piece]) -> Piece:
    """The pieces of a choice as one."""
    text = "".join(piece.text for piece in pieces)
    entries = [item for piece in pieces for item in piece.entries]
    return Piece(pieces[-1].index, text, entries, pieces[-1].finish_reason)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(generation: Generation) -> AsyncIterator[bytes]:
    """Server-sent events in OpenAI's form; an error that comes after the first byte is an event too."""
    done = False
    try:
        for opened in generation.choices if generation.chat else ():
            yield _event(generation.envelope([_opening(opened.index)], streaming=True))
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                yield _event(generation.envelope([generation.choice(piece, streaming=True)], streaming=True))
        if generation.body.stream_options and generation.body.stream_options.include_usage:
            yield _event(generation.envelope([], streaming=True) | {"usage": generation.usage()})
        yield b"data: [DONE]\n\n"
        done = True
    except ApiError as error:
        generation.timeline.status = error.error_class.status
        done = True
        yield _event(error.body())
    finally:
        if not done:
            generation.abandon()


def _opening(index: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
