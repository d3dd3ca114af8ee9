"""Bodies of OpenAI's completions and chat completions API, as far as this engine serves them.

A field that would change the answer and is not served is refused, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from instrumented_engine.api.choice import Piece
from instrumented_engine.api.logprobs import chat_form, completion_form
from instrumented_engine.wire import MAX_LOGPROBS

_Token = Annotated[StrictInt, Field(ge=0, lt=2**31)]
_StopString = Annotated[str, Field(min_length=1)]
_TopLogprobs = Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)]
_UNSERVED = ("best_of", "logit_bias", "suffix", "tools", "functions", "audio")


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    include_usage: StrictBool = False


class GenerationRequest(BaseModel):
    """What both kinds of request have in common."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    max_tokens: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=8)] = 1
    stop: _StopString | Annotated[list[_StopString], Field(max_length=4)] | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    ignore_eos: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_unserved(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in _UNSERVED:
                if data.get(name):
                    raise ValueError(f"{name} is not served by this engine")
        return data

    @property
    def stop_strings(self) -> list[str]:
        """The strings that end an answer."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def wanted_logprobs(self) -> int:
        """How many likeliest tokens to report beside each sampled one; -1 reports nothing."""
        return -1


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: str | Annotated[list[_Token], Field(min_length=1)]
    echo: Literal[False] = False
    logprobs: _TopLogprobs | None = None
    top_logprobs: None = None

    @property
    def wanted_logprobs(self) -> int:
        """``logprobs`` is the number itself."""
        return -1 if self.logprobs is None else self.logprobs


class ChatMessage(BaseModel):
    """One message of a conversation; content parts are joined, and only text is served."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The message as plain text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextPart(BaseModel):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: _TopLogprobs | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def wanted_logprobs(self) -> int:
        """``logprobs`` turns them on, ``top_logprobs`` is the number."""
        return (self.top_logprobs or 0) if self.logprobs else -1


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object; the prompt counts once, however many choices there are."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def choice(piece: Piece, *, chat: bool, streaming: bool, logprobs: bool) -> dict[str, Any]:
    """One choice of a response or of a streamed chunk."""
    form = chat_form if chat else completion_form
    body: dict[str, Any] = {
        "index": piece.index,
        "logprobs": form(piece.entries) if logprobs else None,
        "finish_reason": piece.finish_reason,
    }
    text = piece.text
    if not chat:
        body["text"] = text
    elif streaming:
        body["delta"] = {"content": text}
    else:
        body["message"] = {"role": "assistant", "content": text}
    return body
