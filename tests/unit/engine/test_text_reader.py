"""What a client sees of the tokens: cut before a stop string however the text arrived, log probabilities in step."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine.api.logprobs import TokenEntry, chat_form, completion_form
from instrumented_engine.api.reader import TextReader
from instrumented_engine.api.stop import StopFilter
from instrumented_engine.model.tokenizers import ByteTokenizer
from instrumented_engine.wire import TokenLogprobs

BYTES = ByteTokenizer()
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
cut_texts = st.lists(st.text("ab", max_size=4), max_size=12)


def cut_by_hand(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, looking at one more character at a time."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def passed(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What came out for each piece and at the end, and whether a stop string was seen."""
    stop_filter = StopFilter(stops)
    out = [stop_filter.push(piece) for piece in pieces]
    stopped = stop_filter.stopped
    return [*out, stop_filter.finish()], stopped


@given(cut_texts, stop_lists)
def test_the_text_is_cut_before_the_first_stop_string(pieces: list[str], stops: list[str]) -> None:
    out, stopped = passed(pieces, stops)
    assert ("".join(out), stopped) == cut_by_hand("".join(pieces), stops)


@given(st.text("ab", max_size=20), stop_lists)
def test_no_more_is_held_back_than_may_be_a_stop_string(text: str, stops: list[str]) -> None:
    stop_filter = StopFilter(stops)
    out = ""
    for end, character in enumerate(text, 1):
        out += stop_filter.push(character)
        if stop_filter.stopped:
            return
        held = text[len(out) : end]
        assert text[:end] == out + held
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_pieces() -> None:
    assert passed(["one EN", "D O", "F two"], ["END OF"]) == (["one ", "", "", ""], True)
    assert passed(["one EN", "D O", "NE two"], ["END OF"]) == (["one ", "", "END ONE two", ""], False)
    assert passed(["one EN"], ["END OF"]) == (["one ", "EN"], False)


def found(token: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, [token, 99, 257], [-0.5, -1.0, -2.0])


def read(text: str, stops: list[str], cuts: list[int]) -> TextReader:
    """Push the bytes of a text in pieces; checks that text and entries come in step."""
    tokens = list(text.encode())
    bounds = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    reader = TextReader(BYTES, stops, 2)
    out = ""
    entries: list[TokenEntry] = []
    for start, end in pairwise(bounds):
        piece, new = reader.push(tokens[start:end], [found(token) for token in tokens[start:end]])
        out, entries = out + piece, entries + new
        assert all(item.offset < len(out) for item in entries)
    rest, last = reader.finish()
    out, entries = out + rest, entries + last
    expected, stopped = cut_by_hand(text, stops)
    assert (out, reader.stopped) == (expected, stopped)
    assert b"".join(item.sampled.raw for item in entries).startswith(out.encode())
    assert b"".join(item.sampled.raw for item in entries) == out.encode()
    return reader


@given(st.text("ab€", max_size=20), stop_lists, st.lists(st.integers(0, 60), max_size=6))
def test_entries_are_those_of_the_text_that_passed(text: str, stops: list[str], cuts: list[int]) -> None:
    read(text, stops, cuts)


def test_tokens_after_the_stop_string_do_not_count() -> None:
    assert read("one stop two", ["stop"], []).tokens == len("one stop")


@given(st.lists(st.lists(st.integers(0, 259), max_size=5), max_size=8), st.booleans())
def test_one_by_one_reads_the_same_text(pushes: list[list[int]], with_stop: bool) -> None:
    reader = TextReader(BYTES, ["\x00never\x00"] if with_stop else [])
    text = "".join(reader.push(tokens)[0] for tokens in pushes) + reader.finish()[0]
    tokens = [token for push in pushes for token in push]
    assert text == BYTES.decode(tokens)
    assert reader.tokens == len(tokens)


def test_openai_forms() -> None:
    reader = TextReader(BYTES, (), 2)
    _, first = reader.push([104, 0xC3], [found(104), TokenLogprobs(float("-inf"), [0xC3, 257, 1], [-0.5, -1, -2])])
    _, second = reader.push([0xA9, 257], [found(0xA9), found(257)])
    _, last = reader.finish()
    entries = first + second + last
    assert completion_form(entries) == {
        "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5, -9999.0, -0.5],
        "top_logprobs": [
            {"h": -0.5, "c": -1.0},
            {"bytes:\\xc3": -0.5, "token_id:257": -1},
            {"bytes:\\xa9": -0.5, "c": -1.0},
        ],
        "text_offset": [0, 1, 1],
    }
    content = chat_form(entries)["content"]
    assert [item["bytes"] for item in content] == [[104], [0xC3], [0xA9]]
    assert content[1]["token"] == "\\xc3"
    assert content[0]["top_logprobs"][1] == {"token": "c", "logprob": -1.0, "bytes": [99]}
