"""One completion from its prompt to its last token, as one JSON body or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.responses import Response

from instrumented_engine import wire
from instrumented_engine.api.client import CoreClient, Stream, failure, new_request_id
from instrumented_engine.api.errors import OVERLOAD, PROTOCOL, ApiError
from instrumented_engine.api.protocol import ChatCompletionRequest, GenerationRequest, choice, usage
from instrumented_engine.api.timeline import CLIENT_CLOSED_REQUEST, Timeline
from instrumented_engine.model.tokenizers import IncrementalDecoder, Tokenizer
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
        self._decoder = IncrementalDecoder(tokenizer)
        self._eos_ids = tokenizer.eos_ids
        timeline.prompt_tokens = len(prompt)
        if body.stream:
            timeline.flags |= RequestFlag.STREAM
        self.stream: Stream = client.submit(self._message(number, prompt, tokenizer), timeline)

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
        )

    def _max_tokens(self, prompt_tokens: int) -> int:
        limit = self._client.max_model_len
        if limit is None:
            raise ApiError(
                OVERLOAD, "the engine has no running core: it is starting, or it died and is being restarted"
            )
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

    async def pieces(self) -> AsyncIterator[tuple[str, str | None]]:
        """Text as it is generated, then the finish reason with the last piece.

        Raises:
            ApiError: the core failed the request.
        """
        while True:
            tokens, finished = await self.stream.take()
            self.timeline.output_tokens += len(tokens)
            text = self._decoder.push([token for token in tokens if token not in self._eos_ids])
            if finished is None:
                if text:
                    yield text, None
                continue
            if finished.reason == "error":
                raise failure(finished)
            self._client.forget(self.stream)
            yield text + self._decoder.finish(), finished.reason
            return

    def abandon(self) -> None:
        """The client went away: stop the core's work on this request."""
        self.timeline.aborted = True
        self.timeline.status = CLIENT_CLOSED_REQUEST
        self._client.abort(self.stream)

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

    def usage(self) -> dict[str, int]:
        """The usage object as of now."""
        return usage(self.timeline.prompt_tokens, self.timeline.output_tokens)


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
    texts: list[str] = []
    reason: str | None = None
    async for text, reason in generation.pieces():  # noqa: B007 - the last reason is the answer's
        texts.append(text)
    choices = [choice(generation.chat, "".join(texts), reason, streaming=False)]
    return generation.envelope(choices) | {"usage": generation.usage()}


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(generation: Generation) -> AsyncIterator[bytes]:
    """Server-sent events in OpenAI's form; an error that comes after the first byte is an event too."""
    done = False
    try:
        if generation.chat:
            opening = {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            yield _event(generation.envelope([opening], streaming=True))
        async for text, reason in generation.pieces():
            chunk = choice(generation.chat, text, reason, streaming=True)
            yield _event(generation.envelope([chunk], streaming=True))
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


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
