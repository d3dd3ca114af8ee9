"""What the vocabularies of model files have in common; no torch here, the API process imports it."""

from collections.abc import Iterable

from tokenizers import Tokenizer


class Vocabulary:
    """Text to ids by a library, and ids to bytes by a table of ours.

    Attributes:
        eos_ids: Ids that end an answer.
        vocab_size: Ids are ``0 .. vocab_size - 1``; there may be more of them than entries in the file.
        max_positions: Tokens the model can hold.
    """

    def __init__(
        self, tokenizer: Tokenizer, pieces: list[bytes], eos_ids: frozenset[int], vocab_size: int, max_positions: int
    ) -> None:
        """``pieces`` are the bytes of each id, none for a special token."""
        self._tokenizer = tokenizer
        self._pieces = pieces
        self.eos_ids = eos_ids
        self.vocab_size = vocab_size
        self.max_positions = max_positions

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special tokens are skipped, bytes that are no UTF-8 become U+FFFD."""
        return self.token_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, none for special tokens.

        Raises:
            IndexError: an id is not below ``vocab_size``.
        """
        return b"".join([self._pieces[token] for token in ids])


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which UTF-8 cannot hold, as ``?``."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
