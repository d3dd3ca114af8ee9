"""Log probabilities of tokens in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from instrumented_engine import wire
from instrumented_engine.model.tokenizers import Tokenizer

_LOWEST: Final = -9999.0
"""JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A token and its log probability."""

    raw: bytes
    token: int
    logprob: float

    def text(self, prefix: str = "") -> str:
        """The token as text: escaped after ``prefix`` if it is no UTF-8 alone, its id if it has no text."""
        if not self.raw:
            return f"token_id:{self.token}"
        try:
            return self.raw.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in self.raw)


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One sampled token, the likeliest ones in its place, and where its text begins."""

    offset: int
    sampled: Spelled
    likeliest: tuple[Spelled, ...]


def entry(tokenizer: Tokenizer, offset: int, token: int, found: wire.TokenLogprobs, width: int) -> TokenEntry:
    """An entry with the ``width`` likeliest tokens that the request asked for."""
    likeliest = zip(found.top_tokens[:width], found.top[:width], strict=True)
    return TokenEntry(
        offset,
        _spelled(tokenizer, token, found.chosen),
        tuple(_spelled(tokenizer, other, logprob) for other, logprob in likeliest),
    )


def _spelled(tokenizer: Tokenizer, token: int, logprob: float) -> Spelled:
    return Spelled(tokenizer.token_bytes([token]), token, max(logprob, _LOWEST))


def completion_form(entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The ``logprobs`` object of a completion's choice."""
    return {
        "tokens": [item.sampled.text("bytes:") for item in entries],
        "token_logprobs": [item.sampled.logprob for item in entries],
        "top_logprobs": [{other.text("bytes:"): other.logprob for other in item.likeliest} for item in entries],
        "text_offset": [item.offset for item in entries],
    }


def chat_form(entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The ``logprobs`` object of a chat completion's choice."""
    content = [
        _chat_token(item.sampled) | {"top_logprobs": [_chat_token(other) for other in item.likeliest]}
        for item in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(spelled: Spelled) -> dict[str, Any]:
    return {"token": spelled.text(), "logprob": spelled.logprob, "bytes": list(spelled.raw)}
