"""Messages between the API process and a core, and how they lie in ZMQ frames: the only file that knows frames.

Each direction is one PUSH/PULL pair per core. A message is two frames: the msgpack payload and a small *hand-over
frame* that is written just before the send call, so that the moment of hand-over travels with the message itself.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

_INPUT_HANDOVER: Final = struct.Struct("<Q")
_OUTPUT_HANDOVER: Final = struct.Struct("<QQQ")


RequestId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class WireError(ValueError):
    """Frames that are no message of ours; the message is one sentence."""


class Submit(msgspec.Struct, array_like=True, tag="submit", gc=False):
    """One request for the core."""

    request_id: RequestId
    prompt: Annotated[bytes, msgspec.Meta(min_length=4)]
    """Token ids, little-endian int32."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    temperature: Annotated[float, msgspec.Meta(ge=0)]
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)]
    top_k: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None
    stop_token_ids: list[int]
    trace_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    span_id: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


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

    core_index: int
    pid: int
    page: str
    """Path of the core's scoreboard page."""
    max_model_len: int


class Outputs(msgspec.Struct, array_like=True, tag="outputs", gc=False):
    """What one step produced, in columns: ``tokens[i]`` belongs to ``request_ids[i]``."""

    core_index: int
    request_ids: bytes
    """Little-endian uint64."""
    tokens: bytes
    """Little-endian int32."""
    finished: list[Finished]


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


def decode_input(frames: Sequence[bytes]) -> InputMessage:
    """The message in the frames.

    Raises:
        WireError: not a message of ours.
    """
    _check(frames, _INPUT_HANDOVER)
    try:
        return _input_decoder.decode(frames[0])
    except msgspec.MsgspecError as error:
        raise WireError(f"undecodable input message: {error}") from error


def decode_output(frames: Sequence[bytes]) -> tuple[OutputMessage, OutputHandover]:
    """The message in the frames and its hand-over.

    Raises:
        WireError: not a message of ours.
    """
    _check(frames, _OUTPUT_HANDOVER)
    try:
        message = _output_decoder.decode(frames[0])
    except msgspec.MsgspecError as error:
        raise WireError(f"undecodable output message: {error}") from error
    if isinstance(message, Outputs) and len(message.request_ids) != 2 * len(message.tokens):
        raise WireError("an output message has columns of different length")
    return message, OutputHandover(*_OUTPUT_HANDOVER.unpack(frames[1]))


def _check(frames: Sequence[bytes], handover: struct.Struct) -> None:
    if len(frames) != 2 or len(frames[1]) != handover.size:
        raise WireError(f"expected a payload and a hand-over frame, got {[len(frame) for frame in frames[:8]]} bytes")


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as a column."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def unpack_tokens(column: bytes) -> list[int]:
    """A column as token ids.

    Raises:
        WireError: the column is cut off inside a number.
    """
    if len(column) % 4:
        raise WireError("a token column is cut off")
    tokens: list[int] = np.frombuffer(column, dtype="<i4").tolist()
    return tokens


def pack_ids(ids: Sequence[int]) -> bytes:
    """Request ids as a column."""
    return np.asarray(ids, dtype="<u8").tobytes()


def unpack_ids(column: bytes) -> list[int]:
    """A column as request ids; the caller has checked its length against the tokens."""
    ids: NDArray[np.uint64] = np.frombuffer(column, dtype="<u8")
    return [int(value) for value in ids.tolist()]
