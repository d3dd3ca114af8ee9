"""What the engine answers, as the OpenAPI document describes it. Answers are built by hand; a test compares the two."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from instrumented_engine.api.errors import TABLE, ErrorClass

Responses = dict[int | str, dict[str, Any]]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Status(_Answer):
    """The process answers."""

    status: Literal["ok"]


class Version(_Answer):
    """The release that runs."""

    version: str


class ModelCard(_Answer):
    """One served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: Annotated[int | None, Field(description="tokens of one request; null while there is no core")]


class ModelList(_Answer):
    """The served model, as a list."""

    object: Literal["list"]
    data: list[ModelCard]


class ErrorDetail(_Answer):
    """What is wrong: one sentence, and the parameter at fault where there is one."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorAnswer(_Answer):
    """OpenAI's error object; docs/errors.md has the classes."""

    error: ErrorDetail


class CachedTokens(_Answer):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(_Answer):
    """Tokens; the prompt counts once, however many choices there are."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


FinishReason = Literal["stop", "length"]


class CompletionLogprobs(_Answer):
    """Log probabilities in the form of the completions API."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatToken(_Answer):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenEntry(ChatToken):
    """A sampled token with the likeliest ones in its place."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(_Answer):
    """Log probabilities in the form of the chat API."""

    content: list[ChatTokenEntry]
    refusal: None


class CompletionChoice(_Answer):
    """One of ``n`` answers."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class ChatAnswerMessage(_Answer):
    """The model's message."""

    role: Literal["assistant"]
    content: str


class ChatChoice(_Answer):
    """One of ``n`` answers."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class Completion(_Answer):
    """A whole completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatCompletion(_Answer):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


_STREAM: Final = {
    "schema": {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "string"}},
        "description": "One server-sent event, with `stream: true`. `data` is a JSON object of the same form with one "
        "choice (of `object: chat.completion.chunk` and a `delta` in a chat), the last one `data: [DONE]`. With "
        "`stream_options.include_usage` the event before that has no choice and the `usage`. An error after the first "
        "byte is an event with an `error` object, and the last.",
    },
    "example": 'data: {"id": "cmpl-…", "object": "text_completion", "choices": [{"index": 0, "text": " Hi", '
    '"logprobs": null, "finish_reason": null}]}\n\ndata: [DONE]\n\n',
}


_OTHER: Final = {"model": ErrorAnswer, "description": "Any other refusal, such as 405, in the same form."}


def whole(answer: type[BaseModel]) -> Responses:
    """A route that has one answer."""
    return {200: {"model": answer}, "4XX": _OTHER}


def errors(*classes: ErrorClass) -> Responses:
    """Error answers of a route."""
    return {one.status: _error(one) for one in classes}


def _error(one: ErrorClass) -> dict[str, Any]:
    answer: dict[str, Any] = {"model": ErrorAnswer, "description": f"{one.name}. Try again: {one.retry_advice}."}
    if one.retry_after_seconds:
        schema = {"type": "integer", "minimum": 1}
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "required": True, "schema": schema}}
    return answer


def generation(answer: type[BaseModel]) -> Responses:
    """The answers of a route that generates text: one body or a stream, and every class of error."""
    streamed = {"description": "The answer.", "content": {"text/event-stream": _STREAM}}
    answers = whole(answer)
    answers[200] |= streamed
    return answers | errors(*TABLE)
