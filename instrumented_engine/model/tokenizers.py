"""Text to token ids and back; no torch here, the API process imports it."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from instrumented_engine.model.chat import chatml_prompt
from instrumented_engine.model.config import DUMMY_CONFIG
from instrumented_engine.model.source import ModelSource


class Tokenizer(Protocol):
    """What the engine asks of a vocabulary."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer."""

    @property
    def vocab_size(self) -> int:
        """Ids are ``0 .. vocab_size - 1``."""

    @property
    def max_positions(self) -> int:
        """Tokens of prompt and answer together that the model can hold."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; halves of surrogate pairs, which UTF-8 cannot hold, become ``?``."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without special tokens; bytes that are no UTF-8 become U+FFFD."""

    def token_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ``decode`` reads as UTF-8; ids joined are bytes joined."""

    def chat_prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """Return the prompt for ``(role, content)`` messages, ending where the assistant's answer starts."""


class ByteTokenizer:
    """Vocabulary of the dummy model: ids 0..255 are bytes, 256..259 the markers bos, eos, pad and turn.

    Markers never come from text and decode to nothing.
    """

    eos_ids = frozenset({257})
    vocab_size = DUMMY_CONFIG.vocab_size
    max_positions = DUMMY_CONFIG.max_positions

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of a text; halves of surrogate pairs become ``?``."""
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; markers are skipped, bytes that are no UTF-8 become U+FFFD."""
        return self.token_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the ids that are bytes."""
        return bytes(token for token in ids if token < 256)

    def chat_prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """Return the messages in ChatML, which is plain text to this vocabulary."""
        return chatml_prompt(messages)


class IncrementalDecoder:
    """Decodes a growing list of ids, a push at a time, in time proportional to the ids pushed.

    The pushed texts and ``finish()`` joined are ``tokenizer.decode`` of all ids. A character whose bytes are spread
    over several tokens comes out whole with its last token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start an empty text."""
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that is certain now that ``ids`` follow; may be empty."""
        return self._utf8.decode(self._tokenizer.token_bytes(ids))

    def finish(self) -> str:
        """Return what was held back: U+FFFD if the ids ended within a character. The decoder is then empty."""
        return self._utf8.decode(b"", final=True)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Return the vocabulary of a model.

    Raises:
        ModelUnavailable: the file cannot be read, or its vocabulary is of an unsupported kind.
    """
    if source.format == "dummy":
        return ByteTokenizer()
    # The readers are optional dependencies which the dummy model does without.
    if source.format == "safetensors":
        from instrumented_engine.model.hf_tokenizer import HfTokenizer  # noqa: PLC0415

        return HfTokenizer(source.file)
    from instrumented_engine.model.gguf_tokenizer import GgufTokenizer  # noqa: PLC0415

    return GgufTokenizer(source.file)
