"""The tokens of one choice into the text that its client sees."""

from __future__ import annotations

from collections.abc import Sequence

from instrumented_engine import wire
from instrumented_engine.api.logprobs import TokenEntry, entry
from instrumented_engine.api.stop import StopFilter
from instrumented_engine.model.tokenizers import IncrementalDecoder, Tokenizer

Read = tuple[str, list[TokenEntry]]
"""Text, and the entries of the tokens that begin in it or before."""


class TextReader:
    """Decodes, cuts before a stop string, and keeps log probabilities in step with the text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), top_logprobs: int = -1) -> None:
        """``top_logprobs`` is how many likeliest tokens an entry shows; -1 makes no entries."""
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer)
        self._filter = StopFilter(stops)
        self._top_logprobs = top_logprobs
        self._one_by_one = bool(stops) or top_logprobs >= 0
        self._decoded = self._passed = 0
        self._entries: list[TokenEntry] = []
        self.tokens = 0
        """Tokens read: up to the one that completed a stop string, none after it."""

    @property
    def stopped(self) -> bool:
        """A stop string ended the text."""
        return self._filter.stopped

    def push(self, tokens: Sequence[int], logprobs: Sequence[wire.TokenLogprobs] = ()) -> Read:
        """What is certain now that these tokens follow."""
        if not self._one_by_one:
            self.tokens += len(tokens)
            return self._decoder.push([token for token in tokens if token not in self._tokenizer.eos_ids]), []
        text = "".join([self._push_one(index, token, logprobs) for index, token in enumerate(tokens)])
        return text, self._release(text)

    def finish(self) -> Read:
        """The rest: the last token was pushed."""
        rest = self._filter.push(self._decoder.finish()) + self._filter.finish()
        entries = self._release(rest)
        if not self.stopped:
            entries, self._entries = entries + self._entries, []
        return rest, entries

    def _push_one(self, index: int, token: int, logprobs: Sequence[wire.TokenLogprobs]) -> str:
        if self.stopped:
            return ""
        self.tokens += 1
        if token in self._tokenizer.eos_ids:
            return ""
        if self._top_logprobs >= 0 and logprobs:
            found = logprobs[index]
            self._entries.append(entry(self._tokenizer, self._decoded, token, found, self._top_logprobs))
        text = self._decoder.push([token])
        self._decoded += len(text)
        return self._filter.push(text)

    def _release(self, text: str) -> list[TokenEntry]:
        self._passed += len(text)
        ready = [item for item in self._entries if item.offset < self._passed]
        self._entries = self._entries[len(ready) :]
        return ready
