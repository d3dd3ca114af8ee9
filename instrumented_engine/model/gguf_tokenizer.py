"""The byte-level BPE vocabulary of a GGUF file; no torch here, the API process imports it."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from instrumented_engine.model.byte_level import piece_bytes
from instrumented_engine.model.chat import END, chatml_prompt
from instrumented_engine.model.gguf_file import GgufFile, read_config
from instrumented_engine.model.source import ModelUnavailable
from instrumented_engine.model.vocabulary import Vocabulary, encodable

# Token types of the GGUF format.
CONTROL = 3
USER_DEFINED = 4

END_TOKENS = (END, "<|endoftext|>")
PRE_TOKENIZERS = {"smollm": (pre_tokenizers.Digits(individual_digits=True),), "gpt-2": (), "default": ()}
DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\n|\\n)(.*?)<\|im_end\|>", re.DOTALL)


class GgufTokenizer(Vocabulary):
    """Vocabulary read from a GGUF file.

    Special tokens written out in a text are parsed as such, as the model's own tokenizer does. Chat prompts are
    ChatML, with the default system message that the file's chat template names, if it names one. ``eos_ids`` are the
    file's end-of-text and end-of-turn ids and ChatML's.
    """

    def __init__(self, path: Path) -> None:
        """Read the vocabulary.

        Raises:
            ModelUnavailable: the file cannot be read, or its vocabulary is of an unsupported kind.
        """
        file = GgufFile(path)
        config = read_config(file)
        tokens: list[str] = file.require("tokenizer.ggml.tokens")
        types: list[int] = file.get("tokenizer.ggml.token_type", [1] * len(tokens))
        tokenizer = _build(file, tokens, types)
        pieces = [b"" if kind == CONTROL else piece_bytes(t) for t, kind in zip(tokens, types, strict=True)]
        super().__init__(tokenizer, pieces, _eos_ids(file, tokens), config.vocab_size, config.max_positions)
        self._prefix = _prefix(file)
        self._default_system = _default_system(file)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; halves of surrogate pairs become ``?``."""
        return self._prefix + self._encode(encodable(text), add_special_tokens=False)

    def chat_prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """Return the messages in ChatML, ending where the assistant's answer starts."""
        return chatml_prompt(messages, self._default_system)


def _build(file: GgufFile, tokens: list[str], types: list[int]) -> Tokenizer:
    model, pre = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ModelUnavailable(f"{file.path} has a vocabulary of kind {model}/{pre}, which is not supported.")
    first, second = zip(*(merge.split(" ", 1) for merge in file.require("tokenizer.ggml.merges")), strict=True)
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(zip(first, second, strict=True))))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*PRE_TOKENIZERS[pre], byte_level])
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        names = [token for token, its_kind in zip(tokens, types, strict=True) if its_kind == kind]
        tokenizer.add_tokens([AddedToken(name, special=special, normalized=False) for name in names])
    return tokenizer


def _eos_ids(file: GgufFile, tokens: list[str]) -> frozenset[int]:
    named = [file.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot")]
    known = [index for index, token in enumerate(tokens) if token in END_TOKENS]
    return frozenset([*(int(index) for index in named if index is not None), *known])


def _prefix(file: GgufFile) -> list[int]:
    if not file.get("tokenizer.ggml.add_bos_token", default=False):
        return []
    return [int(file.require("tokenizer.ggml.bos_token_id"))]


def _default_system(file: GgufFile) -> str | None:
    found = DEFAULT_SYSTEM.search(file.get("tokenizer.chat_template", ""))
    return found[1] if found else None
