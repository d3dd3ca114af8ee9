"""The 256-byte records in a page's ring, and the ring itself.

A record is a sequence number, a packed payload and the payload's CRC-32. The writer clears the number, writes the
rest, then stores ``position + 1``; the reader copies between two reads of the number and drops a copy whose scalars
or CRC disagree. The CRC makes that safe on machines that reorder stores (aarch64) and for a writer killed half-way.
A reader that falls behind loses the oldest records and is told how many.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from telemetry.layout import RECORD_BYTES, RING_HEADER_BYTES, Layout
from telemetry.stages import STAMP_COUNT

_PAYLOAD_BYTES: Final = RECORD_BYTES - 8 - 4

# trace id, span id, parent span id | status, core, flags | prompt, output, cached tokens, clamps | stamps |
# count, busy ns, max ns of each repeated stage | request id
_REQUEST: Final = struct.Struct(f"<16s8s8sHHIIIII{STAMP_COUNT}QIQQIQQIQQ24s")
_TRACE_AND_STAMPS: Final = struct.Struct(f"<16s{struct.calcsize('<8s8sHHIIIII')}x{STAMP_COUNT}Q")
_SCALARS: Final = (
    "trace_id",
    "span_id",
    "parent_span_id",
    "status",
    "core_index",
    "flags",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "clamped",
)
# step, start ns, end ns, batch size, tokens, members in this record, members in the step | trace id + span id each
_STEP: Final = struct.Struct("<QQQIIII192s")
# wall ns | accept queue depth, limit | input and output sockets' receive and send queue bytes | frozen, loop lag ms
_KERNEL: Final = struct.Struct("<QIIQQQQII")
STEP_MEMBERS_PER_RECORD: Final = 8
_MEMBER_BYTES: Final = 24

assert max(_REQUEST.size, _STEP.size, _KERNEL.size) <= _PAYLOAD_BYTES


@dataclass(slots=True)
class Repeats:
    """How often a stage ran for one request, how long it was busy in all, and its longest run (ns)."""

    count: int = 0
    busy_ns: int = 0
    max_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Count one run; a negative duration (clock step) counts as 0."""
        duration_ns = max(duration_ns, 0)
        self.count += 1
        self.busy_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)


@dataclass(slots=True)
class RequestRecord:
    """Everything known about one finished request."""

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    """8 zero bytes when the client sent no ``traceparent``."""
    status: int
    """HTTP status code; 499 when the client went away."""
    core_index: int
    flags: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    clamped: int
    stamps: list[int]
    forward: Repeats = field(default_factory=Repeats)
    output_send: Repeats = field(default_factory=Repeats)
    output_receive: Repeats = field(default_factory=Repeats)
    request_id: str = ""

    def pack(self) -> bytes:
        """The payload; request ids beyond 24 bytes keep their end, which is the random part."""
        return _REQUEST.pack(
            self.trace_id,
            self.span_id,
            self.parent_span_id,
            self.status,
            self.core_index,
            self.flags,
            self.prompt_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.clamped,
            *self.stamps,
            *_flat(self.forward),
            *_flat(self.output_send),
            *_flat(self.output_receive),
            self.request_id.encode()[-24:],
        )

    @classmethod
    def unpack(cls, payload: bytes) -> RequestRecord:
        """The inverse of ``pack``."""
        values = _REQUEST.unpack_from(payload)
        repeats = values[len(_SCALARS) + STAMP_COUNT : -1]
        scalars: dict[str, Any] = dict(zip(_SCALARS, values, strict=False))
        return cls(
            **scalars,
            stamps=list(values[len(_SCALARS) : len(_SCALARS) + STAMP_COUNT]),
            forward=Repeats(*repeats[0:3]),
            output_send=Repeats(*repeats[3:6]),
            output_receive=Repeats(*repeats[6:9]),
            request_id=values[-1].rstrip(b"\0").decode(errors="replace"),
        )


def unpack_stamps(payload: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Trace id and stamps of a request's record, for readers that need no more: ten times as fast as ``unpack``."""
    trace_id, *stamps = _TRACE_AND_STAMPS.unpack_from(payload)
    return trace_id, tuple(stamps)


def _flat(repeats: Repeats) -> tuple[int, int, int]:
    return repeats.count, repeats.busy_ns, repeats.max_ns


@dataclass(slots=True)
class StepRecord:
    """One forward pass and the requests that were in it; a large step takes several records."""

    step: int
    start_ns: int
    end_ns: int
    batch_size: int
    tokens: int
    members: list[tuple[bytes, bytes]]
    """(trace id, server span id) of each member in this record."""

    def pack(self) -> Iterator[bytes]:
        """One payload for each eight members, at least one."""
        for first in range(0, max(len(self.members), 1), STEP_MEMBERS_PER_RECORD):
            chunk = self.members[first : first + STEP_MEMBERS_PER_RECORD]
            yield _STEP.pack(
                self.step,
                self.start_ns,
                self.end_ns,
                self.batch_size,
                self.tokens,
                len(chunk),
                len(self.members),
                b"".join(trace_id + span_id for trace_id, span_id in chunk),
            )

    @classmethod
    def unpack(cls, payload: bytes) -> StepRecord:
        """One payload; records of one step share its number and are joined by the reader."""
        step, start, end, batch, tokens, count, _, packed = _STEP.unpack_from(payload)
        pieces = [
            packed[i * _MEMBER_BYTES : (i + 1) * _MEMBER_BYTES] for i in range(min(count, STEP_MEMBERS_PER_RECORD))
        ]
        return cls(step, start, end, batch, tokens, [(piece[:16], piece[16:]) for piece in pieces])


@dataclass(slots=True, frozen=True)
class KernelSample:
    """What the sidecar saw in the kernel at one instant (100 ms apart)."""

    wall_ns: int
    accept_queue_depth: int
    accept_queue_limit: int
    input_receive_bytes: int
    input_send_bytes: int
    output_receive_bytes: int
    output_send_bytes: int
    frozen: int
    """Bit 0: the API process is stopped; bit 1: a core process is."""
    loop_lag_ms: int

    def pack(self) -> bytes:
        """The payload."""
        return _KERNEL.pack(
            self.wall_ns,
            self.accept_queue_depth,
            self.accept_queue_limit,
            self.input_receive_bytes,
            self.input_send_bytes,
            self.output_receive_bytes,
            self.output_send_bytes,
            self.frozen,
            self.loop_lag_ms,
        )

    @classmethod
    def unpack(cls, payload: bytes) -> KernelSample:
        """The inverse of ``pack``."""
        return cls(*_KERNEL.unpack_from(payload))


class RingWriter:
    """Appends records; one thread only. Never blocks, never fails for a full ring: the oldest record goes."""

    def __init__(self, page: memoryview, layout: Layout) -> None:
        self._bytes = page
        self._slots = page.cast("Q")
        self._head = layout.ring_offset // 8
        self._first = layout.ring_offset + RING_HEADER_BYTES
        self._records = layout.ring_records

    def append(self, payload: bytes) -> None:
        """Write one record (1.6 µs)."""
        position = self._slots[self._head]
        offset = self._first + position % self._records * RECORD_BYTES
        self._slots[offset >> 3] = 0
        payload = payload.ljust(_PAYLOAD_BYTES, b"\0")
        self._bytes[offset + 8 : offset + RECORD_BYTES] = payload + zlib.crc32(payload).to_bytes(4, "little")
        self._slots[offset >> 3] = position + 1
        self._slots[self._head] = position + 1


class RingReader:
    """Reads the records of a ring in order, from the oldest that is still there."""

    def __init__(self, page: memoryview, layout: Layout, position: int = 0) -> None:
        self._bytes = page
        self._slots = page.cast("Q")
        self._head = layout.ring_offset // 8
        self._first = layout.ring_offset + RING_HEADER_BYTES
        self._records = layout.ring_records
        self.position = position
        """Records before this one were read or lost."""
        self.lost = 0
        """Records overwritten before this reader came to them, or torn by a writer that was killed."""

    def drain(self, limit: int | None = None) -> list[bytes]:
        """All payloads written since the last call, at most ``limit``."""
        head = self._slots[self._head]
        oldest = max(head - self._records, 0)
        if self.position < oldest:
            self.lost += oldest - self.position
            self.position = oldest
        last = head if limit is None else min(head, self.position + limit)
        found = []
        while self.position < last:
            payload = self._read(self.position)
            if payload is None:
                self.lost += 1
            else:
                found.append(payload)
            self.position += 1
        return found

    def _read(self, position: int) -> bytes | None:
        offset = self._first + position % self._records * RECORD_BYTES
        before = self._slots[offset >> 3]
        copy = bytes(self._bytes[offset + 8 : offset + RECORD_BYTES])
        after = self._slots[offset >> 3]
        payload, crc = copy[:_PAYLOAD_BYTES], int.from_bytes(copy[_PAYLOAD_BYTES:], "little")
        return payload if before == after == position + 1 and zlib.crc32(payload) == crc else None
