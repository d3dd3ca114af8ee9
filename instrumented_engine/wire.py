"""Messages between the API process and a core, and how they lie in ZMQ frames: the only file that knows frames.

Each core has two PUSH/PULL pairs, one for each direction. A message is two frames: the msgpack payload and a small
*hand-over frame* that is written just before the send call, so that the moment of hand-over travels with the message
itself.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

_INPUT_HANDOVER: Final = struct.Struct("<Q")
_OUTPUT_HANDOVER: Final = struct.Struct("<QQQ")
HANDOVER_BYTES: Final = _OUTPUT_HANDOVER.size
"""The larger of the two hand-over frames, which the limit on messages does not count."""
MAX_LOGPROBS: Final = 5
ZERO_COPY_BYTES: Final = 64 * 1024
"""From here on a frame is cheaper to share with libzmq than to copy."""

Frames = list[bytes | memoryview]
"""As received: the payload is a view of libzmq's memory where that is cheaper than a copy."""

RequestId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
CoreIndex = Annotated[int, msgspec.Meta(ge=0)]
if TYPE_CHECKING:
    Column = bytes | memoryview
else:
    Column = memoryview
"""Numbers of one kind, end to end. Decoded, it is a view of the frame that it came in, not a copy."""


class WireError(ValueError):
    """Frames that are no message of ours; the message is one sentence."""


class Submit(msgspec.Struct, array_like=True, tag="submit", gc=False):
    """One request for the core."""

    request_id: RequestId
    prompt: Annotated[Column, msgspec.Meta(min_length=4)]
    """Token ids, little-endian int32."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    temperature: Annotated[float, msgspec.Meta(ge=0)]
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)]
    top_k: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None
    stop_token_ids: list[int]
    trace_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    span_id: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    logprobs: Annotated[int, msgspec.Meta(ge=-1, le=MAX_LOGPROBS)] = -1
    """How many likeliest tokens to report beside each sampled one; -1 reports nothing."""


class Abort(msgspec.Struct, array_like=True, tag="abort", gc=False):
    """Stop these requests; unknown ids are ignored, for they may have just finished."""

    request_ids: list[RequestId]


class Finished(msgspec.Struct, array_like=True, gc=False):
    """The end of a request, with what only the core knows about it."""

    request_id: RequestId
    reason: str
    """``stop``, ``length``, ``abort`` or ``error``."""
    stamps: list[int]
    """In the order of ``telemetry.stages.CORE_STAMPS``."""
    forward: tuple[int, int, int]
    """Steps, busy ns, longest ns."""
    cached_tokens: int = 0
    error: str = ""


class Ready(msgspec.Struct, array_like=True, tag="ready", gc=False):
    """First message of a core: it has loaded its model and takes requests."""

    core_index: CoreIndex
    pid: int
    page: str
    """Path of the core's scoreboard page."""
    max_model_len: int


class Logprobs(msgspec.Struct, array_like=True, gc=False):
    """Log probabilities of those tokens of a step whose requests asked for them, in columns."""

    rows: Column
    """Places in the step's tokens, little-endian int32."""
    chosen: Column
    """Of the sampled tokens, little-endian float32."""
    width: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]
    """Likeliest tokens reported for each row: the most that any of the requests asked for."""
    top_tokens: Column
    """``width`` ids for each row, likeliest first, little-endian int32."""
    top: Column
    """Theirs, little-endian float32."""


class TokenLogprobs(NamedTuple):
    """One token's part of ``Logprobs``."""

    chosen: float
    top_tokens: list[int]
    top: list[float]


class Outputs(msgspec.Struct, array_like=True, tag="outputs", gc=False):
    """What one step produced, in columns: ``tokens[i]`` belongs to ``request_ids[i]``."""

    core_index: CoreIndex
    request_ids: Column
    """Little-endian uint64."""
    tokens: Column
    """Little-endian int32."""
    finished: list[Finished]
    logprobs: Logprobs | None = None


InputMessage = Submit | Abort
OutputMessage = Ready | Outputs

_encoder = msgspec.msgpack.Encoder()
_input_decoder = msgspec.msgpack.Decoder(InputMessage)
_output_decoder = msgspec.msgpack.Decoder(OutputMessage)


class OutputHandover(msgspec.Struct, frozen=True, gc=False):
    """The last frame of an output message."""

    sequence: int
    """1, 2, 3 … per core."""
    queued_ns: int
    """When the message was put on the core's output queue."""
    handed_ns: int


def encode(message: InputMessage | OutputMessage) -> bytes:
    """The payload frame."""
    return _encoder.encode(message)


def input_frames(payload: bytes) -> tuple[list[bytes], int]:
    """Both frames of an input message and the hand-over stamp; call it right before the send call."""
    handed_ns = time.time_ns()
    return [payload, _INPUT_HANDOVER.pack(handed_ns)], handed_ns


def output_frames(payload: bytes, sequence: int, queued_ns: int) -> list[bytes]:
    """Both frames of an output message; call it right before the send call."""
    return [payload, _OUTPUT_HANDOVER.pack(sequence, queued_ns, time.time_ns())]


def send(socket: zmq.Socket[bytes], frames: Sequence[bytes], flags: int = 0) -> None:
    """Hand a message over; a large payload is shared with libzmq until it is gone, never copied.

    Raises:
        zmq.Again: it cannot be handed over now.
    """
    socket.send_multipart(frames, flags, copy=len(frames[0]) < ZERO_COPY_BYTES)


def receive(socket: zmq.Socket[bytes]) -> Frames:
    """The frames of the next message; waits for it."""
    first = socket.recv(copy=False)
    frames: Frames = [first.buffer if len(first) >= ZERO_COPY_BYTES else first.bytes]
    while socket.rcvmore:
        frames.append(socket.recv())
    return frames


def decode_input(frames: Sequence[bytes | memoryview]) -> InputMessage:
    """The message in the frames.

    Raises:
        WireError: not a message of ours.
    """
    _check(frames, _INPUT_HANDOVER)
    try:
        return _input_decoder.decode(frames[0])
    except msgspec.MsgspecError as error:
        raise WireError(f"undecodable input message: {error}") from error


def decode_output(frames: Sequence[bytes | memoryview]) -> tuple[OutputMessage, OutputHandover]:
    """The message in the frames and its hand-over.

    Raises:
        WireError: not a message of ours.
    """
    _check(frames, _OUTPUT_HANDOVER)
    try:
        message = _output_decoder.decode(frames[0])
    except msgspec.MsgspecError as error:
        raise WireError(f"undecodable output message: {error}") from error
    if isinstance(message, Outputs):
        _check_columns(message)
    return message, OutputHandover(*_OUTPUT_HANDOVER.unpack(frames[1]))


def _check_columns(message: Outputs) -> None:
    logprobs = message.logprobs
    fits = len(message.request_ids) == 2 * len(message.tokens)
    if logprobs is not None:
        rows = len(logprobs.rows)
        fits = fits and len(logprobs.chosen) == rows and rows % 4 == 0
        fits = fits and len(logprobs.top) == len(logprobs.top_tokens) == rows * logprobs.width
    if not fits:
        raise WireError("an output message has columns of different length")


def _check(frames: Sequence[bytes | memoryview], handover: struct.Struct) -> None:
    if len(frames) != 2 or len(frames[1]) != handover.size:
        raise WireError(f"expected a payload and a hand-over frame, got {[len(frame) for frame in frames[:8]]} bytes")


def pack_tokens(tokens: Sequence[int]) -> Column:
    """Token ids as a column."""
    return _column(np.asarray(tokens, dtype="<i4"))


def _column(numbers: NDArray[Any]) -> Column:
    """The numbers' own memory."""
    return numbers.reshape(-1).view(np.uint8).data


def unpack_tokens(column: Column) -> list[int]:
    """A column as token ids.

    Raises:
        WireError: the column is cut off inside a number.
    """
    if len(column) % 4:
        raise WireError("a token column is cut off")
    tokens: list[int] = np.frombuffer(column, dtype="<i4").tolist()
    return tokens


def pack_logprobs(
    rows: Sequence[int], chosen: NDArray[np.float32], top_tokens: NDArray[np.int64], top: NDArray[np.float32]
) -> Logprobs:
    """Columns from one entry per row of ``chosen`` and ``[rows, width]`` arrays of the likeliest."""
    return Logprobs(
        pack_tokens(rows),
        _column(chosen.astype("<f4")),
        top.shape[1],
        _column(top_tokens.astype("<i4")),
        _column(top.astype("<f4")),
    )


def unpack_logprobs(columns: Logprobs) -> dict[int, TokenLogprobs]:
    """The columns by place in the step's tokens; the caller has checked their lengths."""
    rows = unpack_tokens(columns.rows)
    shape = (len(rows), columns.width)
    top_tokens = np.frombuffer(columns.top_tokens, dtype="<i4").reshape(shape).tolist()
    top = np.frombuffer(columns.top, dtype="<f4").reshape(shape).tolist()
    chosen = np.frombuffer(columns.chosen, dtype="<f4").tolist()
    return {row: TokenLogprobs(*found) for row, *found in zip(rows, chosen, top_tokens, top, strict=True)}


def pack_ids(ids: Sequence[int]) -> Column:
    """Request ids as a column."""
    return _column(np.asarray(ids, dtype="<u8"))


def unpack_ids(column: Column) -> list[int]:
    """A column as request ids; the caller has checked its length against the tokens."""
    ids: NDArray[np.uint64] = np.frombuffer(column, dtype="<u8")
    return [int(value) for value in ids.tolist()]
