"""Bodies of OpenAI's completions and chat completions API, as far as this engine serves them.

A field that would change the answer and is not served is refused, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

_Token = Annotated[StrictInt, Field(ge=0, lt=2**31)]
_UNSERVED = ("best_of", "logit_bias", "suffix", "tools", "functions", "logprobs", "top_logprobs", "stop", "audio")


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
    n: Annotated[StrictInt, Field(ge=1, le=1)] = 1
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


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: str | Annotated[list[_Token], Field(min_length=1)]
    echo: Literal[False] = False


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


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def choice(chat: bool, text: str, finish_reason: str | None, streaming: bool) -> dict[str, Any]:
    """The single choice of a response or of one streamed chunk."""
    body: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
    if not chat:
        body["text"] = text
    elif streaming:
        body["delta"] = {"content": text}
    else:
        body["message"] = {"role": "assistant", "content": text}
    return body
