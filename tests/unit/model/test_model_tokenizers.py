"""Text survives the byte vocabulary, and streaming it in pieces loses and breaks nothing."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine.model.chat import chatml_prompt
from instrumented_engine.model.config import DUMMY_CONFIG
from instrumented_engine.model.source import ModelSource
from instrumented_engine.model.tokenizers import ByteTokenizer, IncrementalDecoder, load_tokenizer

BYTES = ByteTokenizer()
PUSHES = st.lists(st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=6), max_size=12)


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_half_a_surrogate_pair_is_a_question_mark() -> None:
    assert BYTES.decode(BYTES.encode("a\ud83db")) == "a?b"


def test_markers_decode_to_nothing() -> None:
    assert BYTES.decode([256, 104, 257, 105, 258, 259]) == "hi"
    assert BYTES.eos_ids <= set(range(256, BYTES.vocab_size))


def test_dummy_source_has_the_byte_vocabulary() -> None:
    tokenizer = load_tokenizer(ModelSource.resolve("dummy"))
    assert isinstance(tokenizer, ByteTokenizer)
    assert (tokenizer.vocab_size, tokenizer.max_positions) == (DUMMY_CONFIG.vocab_size, DUMMY_CONFIG.max_positions)


@given(PUSHES)
def test_pushes_join_to_decode(pushes: list[list[int]]) -> None:
    """Any ids, so mostly bytes that are no UTF-8."""
    decoder = IncrementalDecoder(BYTES)
    streamed = "".join(decoder.push(ids) for ids in pushes) + decoder.finish()
    assert streamed == BYTES.decode([token for ids in pushes for token in ids])


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_no_broken_character_is_pushed(text: str) -> None:
    """A byte at a time: each character comes whole, with its last byte, and nothing is left."""
    decoder = IncrementalDecoder(BYTES)
    pushed = [decoder.push([token]) for token in BYTES.encode(text)]
    assert "\ufffd" not in "".join(pushed)
    assert [piece for piece in pushed if piece] == list(text)
    assert decoder.finish() == ""


def test_finish_shows_the_broken_end_once() -> None:
    decoder = IncrementalDecoder(BYTES)
    assert decoder.push(BYTES.encode("é")[:1]) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_a_push_costs_what_it_pushes() -> None:
    """200 000 pushes take a fraction of a second; re-reading all that came before would take minutes."""
    decoder = IncrementalDecoder(BYTES)
    start = time.process_time()
    for _ in range(200_000):
        decoder.push([104])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("messages", "system", "prompt"),
    [
        ([], "Be kind.", "<|im_start|>assistant\n"),
        (
            [("user", "Hi")],
            None,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            [("user", "Hi")],
            "Be kind.",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            [("system", "Be brief."), ("user", "Hi")],
            "Be kind.",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_chatml(messages: list[tuple[str, str]], system: str | None, prompt: str) -> None:
    assert chatml_prompt(messages, system) == prompt
