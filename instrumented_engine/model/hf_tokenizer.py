"""The vocabulary of a Hugging Face model directory; no torch here, the API process imports it."""

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from instrumented_engine.model.byte_level import piece_bytes
from instrumented_engine.model.chat import END, chatml_prompt
from instrumented_engine.model.hf_directory import HfDirectory, read_hf_config
from instrumented_engine.model.source import HF_TOKENIZER, ModelUnavailable
from instrumented_engine.model.vocabulary import Vocabulary, encodable

TOKENIZER_CONFIG, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
ChatTemplate = Callable[[Sequence[tuple[str, str]]], str]


class HfTokenizer(Vocabulary):
    """Vocabulary read from ``tokenizer.json``.

    ``eos_ids`` are those that the model's configuration names, and ChatML's end of turn; ``vocab_size`` is the number
    of rows of the embedding, which may be more than the vocabulary has entries.
    """

    def __init__(self, path: Path) -> None:
        """Read the vocabulary.

        Raises:
            ModelUnavailable: a file cannot be read, or the vocabulary is of an unsupported kind.
        """
        directory = HfDirectory(path)
        config = read_hf_config(directory)
        tokenizer = _load(path / HF_TOKENIZER)
        pieces = _pieces(tokenizer, config.vocab_size)
        end_of_turn = tokenizer.token_to_id(END)
        eos_ids = directory.eos_ids | ({end_of_turn} if end_of_turn is not None else set())
        super().__init__(tokenizer, pieces, eos_ids, config.vocab_size, config.max_positions)
        settings = directory.read(TOKENIZER_CONFIG) or {}
        self._bos = _marker(settings.get("bos_token"))
        self._chat = _chat_template(directory, settings)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; halves of surrogate pairs become ``?``."""
        clean = encodable(text)
        # A chat template writes the beginning marker itself; adding a second one changes the answer.
        opened = bool(self._bos) and clean.startswith(self._bos)
        return self._encode(clean, add_special_tokens=not opened)

    def chat_prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """Return the prompt for ``(role, content)`` messages, ending where the assistant's answer starts.

        Raises:
            ValueError: the model's chat template refuses these messages.
        """
        return self._chat(messages)


def _load(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelUnavailable(f"{path} cannot be read: {error}") from error
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None or decoder["type"] != "ByteLevel":
        kind = decoder and decoder["type"]
        raise ModelUnavailable(f"{path} has a vocabulary with decoder {kind}, and only ByteLevel is supported.")
    return tokenizer


def _pieces(tokenizer: Tokenizer, size: int) -> list[bytes]:
    pieces = [b""] * size
    for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
        if index < size:
            pieces[index] = piece_bytes(token)
    for index, added in tokenizer.get_added_tokens_decoder().items():
        if index < size:
            pieces[index] = b"" if added.special else added.content.encode()
    return pieces


def _marker(value: Any) -> str:
    """A special token in ``tokenizer_config.json``: its text, or an object around it."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _chat_template(directory: HfDirectory, settings: dict[str, Any]) -> ChatTemplate:
    text = _template_text(directory.path, settings)
    if text is None or find_spec("jinja2") is None:
        return chatml_prompt
    markers = {name: _marker(settings.get(name)) for name in ("bos_token", "eos_token")}
    return _compiled(text, markers, directory.path)


def _template_text(path: Path, settings: dict[str, Any]) -> str | None:
    file = path / TEMPLATE_FILE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _compiled(text: str, markers: dict[str, str], path: Path) -> ChatTemplate:
    from jinja2 import TemplateError  # noqa: PLC0415 - optional; torch brings it
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        template = environment.from_string(text)
    except TemplateError as error:
        raise ModelUnavailable(f"The chat template of {path} cannot be compiled: {error}") from error

    def render(messages: Sequence[tuple[str, str]]) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        try:
            return template.render(messages=turns, add_generation_prompt=True, **markers)
        except TemplateError as error:
            raise ValueError(f"the model's chat template fails on these messages: {error}") from error

    return render
