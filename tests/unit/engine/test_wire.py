from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from instrumented_engine import wire

ids = st.integers(0, 2**63 - 1)
tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50)
submits = st.builds(
    wire.Submit,
    request_id=ids,
    prompt=tokens.map(wire.pack_tokens),
    max_tokens=st.integers(1, 1000),
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 100),
    seed=st.none() | ids,
    stop_token_ids=st.lists(st.integers(0, 300), max_size=4),
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=st.binary(min_size=8, max_size=8),
    logprobs=st.integers(-1, wire.MAX_LOGPROBS),
)
aborts = st.builds(wire.Abort, st.lists(ids, max_size=20))
finished = st.builds(
    wire.Finished,
    ids,
    st.sampled_from(["stop", "length", "abort", "error"]),
    st.lists(ids, min_size=4, max_size=4),
    st.tuples(ids, ids, ids),
    st.integers(0, 100),
    st.text(max_size=40),
)


float32 = st.floats(-20, 0, width=32)


@st.composite
def logprobs(draw: st.DrawFn, tokens_in_step: int) -> wire.Logprobs:
    rows = sorted(draw(st.sets(st.integers(0, tokens_in_step - 1))))
    shape = (len(rows), draw(st.integers(0, wire.MAX_LOGPROBS)))
    return wire.pack_logprobs(
        rows,
        draw(arrays(np.float32, shape[:1], elements=float32)),
        draw(arrays(np.int64, shape, elements=st.integers(0, 2**31 - 1))),
        draw(arrays(np.float32, shape, elements=float32)),
    )


@st.composite
def outputs(draw: st.DrawFn) -> wire.Outputs:
    produced = draw(st.lists(st.tuples(ids, st.integers(0, 2**31 - 1)), max_size=20))
    return wire.Outputs(
        0,
        wire.pack_ids([request_id for request_id, _ in produced]),
        wire.pack_tokens([token for _, token in produced]),
        draw(st.lists(finished, max_size=5)),
        draw(st.none() | logprobs(len(produced))) if produced else None,
    )


readies = st.builds(wire.Ready, st.integers(0, 8), ids, st.text(max_size=40), st.integers(1, 10000))


@given(submits | aborts)
def test_input_round_trip(message: wire.InputMessage) -> None:
    frames, handed_ns = wire.input_frames(wire.encode(message))
    assert wire.decode_input(frames) == message
    assert int.from_bytes(frames[1], "little") == handed_ns


@given(outputs() | readies, ids, ids)
def test_output_round_trip(message: wire.OutputMessage, sequence: int, queued_ns: int) -> None:
    decoded, handover = wire.decode_output(wire.output_frames(wire.encode(message), sequence, queued_ns))
    assert decoded == message
    assert (handover.sequence, handover.queued_ns) == (sequence, queued_ns)
    assert handover.handed_ns > 0


@given(tokens)
def test_token_columns(values: list[int]) -> None:
    assert wire.unpack_tokens(wire.pack_tokens(values)) == values


def test_id_columns() -> None:
    assert wire.unpack_ids(wire.pack_ids([0, 2**63 - 1])) == [0, 2**63 - 1]


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_garbage_frames_raise_wire_error_only(frames: list[bytes]) -> None:
    for decode in (wire.decode_input, wire.decode_output):
        with pytest.raises(wire.WireError):
            decode(frames)


@given(st.binary(max_size=200))
def test_garbage_payloads_raise_wire_error_only(payload: bytes) -> None:
    for decode, size in ((wire.decode_input, 8), (wire.decode_output, 24)):
        try:
            decode([payload, bytes(size)])
        except wire.WireError:
            continue


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": -1},
        {"max_tokens": 0},
        {"temperature": -0.5},
        {"top_p": 0.0},
        {"trace_id": b"short"},
        {"prompt": b""},
        {"logprobs": wire.MAX_LOGPROBS + 1},
    ],
)
def test_values_that_would_break_the_core_are_refused(change: dict[str, object]) -> None:
    good: dict[str, object] = {
        "request_id": 1,
        "prompt": wire.pack_tokens([1]),
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": None,
        "stop_token_ids": [],
        "trace_id": bytes(16),
        "span_id": bytes(8),
        "logprobs": -1,
    }
    fields = wire.Submit.__struct_fields__

    def decode(values: dict[str, object]) -> object:
        payload = msgspec.msgpack.encode(["submit", *(values[name] for name in fields)])
        return wire.decode_input([payload, bytes(8)])

    assert isinstance(decode(good), wire.Submit)
    with pytest.raises(wire.WireError, match="undecodable"):
        decode(good | change)


def test_columns_must_agree() -> None:
    message = wire.Outputs(0, wire.pack_ids([1, 2]), wire.pack_tokens([1]), [])
    with pytest.raises(wire.WireError, match="columns of different length"):
        wire.decode_output(wire.output_frames(wire.encode(message), 1, 1))
    with pytest.raises(wire.WireError, match="cut off"):
        wire.unpack_tokens(b"12345")
    with pytest.raises(wire.WireError, match="undecodable"):
        wire.decode_output(wire.output_frames(wire.encode(wire.Outputs(-1, b"", b"", [])), 1, 1))


def test_logprobs_come_back_by_row() -> None:
    top = np.array([[-0.5, -1.5], [-0.25, -3.0]], dtype=np.float32)
    columns = wire.pack_logprobs([3, 1], np.array([-0.5, -2.0], dtype=np.float32), np.array([[7, 8], [9, 4]]), top)
    assert wire.unpack_logprobs(columns) == {3: (-0.5, [7, 8], [-0.5, -1.5]), 1: (-2.0, [9, 4], [-0.25, -3.0])}


def test_logprobs_cost_nothing_when_nobody_asked() -> None:
    bare = wire.encode(wire.Outputs(0, wire.pack_ids([1]), wire.pack_tokens([1]), []))
    assert len(bare) < 30


@pytest.mark.parametrize(
    "change", [{"width": 1}, {"chosen": b"1234"}, {"rows": b"123"}, {"top": b"", "top_tokens": b"1"}]
)
def test_logprob_columns_must_agree(change: dict[str, object]) -> None:
    good = wire.pack_logprobs([0, 1], np.zeros(2, np.float32), np.zeros((2, 2), np.int64), np.zeros((2, 2), np.float32))
    columns = msgspec.structs.replace(good, **change)
    message = wire.Outputs(0, wire.pack_ids([1, 2]), wire.pack_tokens([1, 2]), [], columns)
    with pytest.raises(wire.WireError, match="columns of different length"):
        wire.decode_output(wire.output_frames(wire.encode(message), 1, 1))


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Two ends in one process, where libzmq itself passes a message on without a copy."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender, context.socket(zmq.PULL) as receiver:
        receiver.bind("inproc://wire")
        sender.connect("inproc://wire")
        yield sender, receiver


def address(buffer: wire.Column) -> int:
    """Where in memory it begins."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [100, wire.ZERO_COPY_BYTES - 40, wire.ZERO_COPY_BYTES, 1 << 20])
def test_a_large_payload_stays_where_it_is_from_end_to_end(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]], size: int
) -> None:
    sender, receiver = pair
    message = wire.Outputs(0, bytes(2 * size // 12 * 4), bytes(size // 12 * 4), [])
    payload = wire.encode(message)
    shared = len(payload) >= wire.ZERO_COPY_BYTES
    assert shared is (size >= wire.ZERO_COPY_BYTES)
    wire.send(sender, wire.output_frames(payload, 1, 2))
    frames = wire.receive(receiver)
    assert (address(frames[0]) == address(payload)) is shared
    decoded, handover = wire.decode_output(frames)
    assert (decoded, handover.sequence) == (message, 1)


def test_decoded_columns_are_views_of_their_frame() -> None:
    message = wire.Outputs(0, wire.pack_ids(range(9000)), wire.pack_tokens(range(9000)), [])
    payload = wire.encode(message)
    decoded, _ = wire.decode_output(wire.output_frames(payload, 1, 1))
    assert isinstance(decoded, wire.Outputs)
    for column in (decoded.request_ids, decoded.tokens):
        assert address(payload) < address(column) < address(payload) + len(payload)


def test_a_column_is_the_memory_of_its_numbers() -> None:
    numbers = np.arange(9000, dtype="<i4")
    column = wire.pack_tokens(cast("Any", numbers))
    assert address(column) == numbers.ctypes.data
    assert wire.unpack_tokens(column) == numbers.tolist()
    assert (len(wire.pack_tokens([])), len(wire.pack_ids([]))) == (0, 0)
