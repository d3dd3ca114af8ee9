"""Netlink sock_diag replies as strided numpy columns, and the socket that fetches them.

A dump is a stream of messages, mostly of one length. Runs of equal messages become numpy views with the message
length as stride, so that a hundred thousand sockets cost a few array operations and no Python object each. Offsets of
attributes come from the first message of a run: they differ with the family, the kernel and our capabilities.

Sources: linux/netlink.h, netlink(7), sock_diag(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
TCPDIAG_GETSOCK: Final = 18
HEADER_BYTES: Final = 16

_HEADER: Final = struct.Struct("=IHHII")  # nlmsg_len, nlmsg_type, nlmsg_flags, nlmsg_seq, nlmsg_pid
_ATTRIBUTE: Final = struct.Struct("=HH")  # nla_len, nla_type
_ERROR_CODE: Final = struct.Struct("=i")
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_DUMP_REQUEST: Final = 0x301
_NLM_F_DUMP_INTR: Final = 0x10
_MAX_ERRNO: Final = 4095  # linux/err.h
_NLA_TYPE_MASK: Final = 0x3FFF
_DONE_BYTES: Final = HEADER_BYTES + _ERROR_CODE.size

BLOCK_BYTES: Final = 1024 * 1024
"""Re-used receive block: a kept dump of 100 000 sockets takes 45 MB. Smaller blocks cost calls, larger ones cache."""
_DATAGRAM_BYTES: Final = 64 * 1024
_ATTEMPTS: Final = 4
_RETRIED: Final = (errno.EINTR, errno.ENOBUFS)
_RECEIVE_TIMEOUT: Final = struct.pack("@ll", 5, 0)
_SEQUENCE: Final = 1
"""The same in every request, so that equal answers are equal bytes. None is taken for another's: see ``DiagSocket``."""
_MOST_KNOWN: Final = 16


class NetlinkError(Exception):
    """A reply that is not sock_diag's, or the kernel's refusal; ``code`` is its errno, 0 for malformed bytes."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one length and attribute layout, one behind the other. Views die with the block they look into."""

    data: memoryview
    offset: int
    stride: int
    count: int
    attributes: Mapping[int, tuple[int, int]]
    """Attribute type -> (offset of its payload in each message, payload bytes)."""

    def column(self, dtype: npt.DTypeLike, offset: int = 0) -> npt.NDArray[Any]:
        """The value at ``offset`` of every message, shape (count,)."""
        return np.ndarray((self.count,), dtype, self.data, self.offset + offset, (self.stride,))

    def attribute(self, kind: int, dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """An attribute's payload in every message, shape (count,); None when absent or shorter than ``dtype``."""
        offset, size = self.attributes.get(kind, (0, -1))
        return self.column(dtype, offset) if size >= np.dtype(dtype).itemsize else None


@dataclass(frozen=True, slots=True)
class Block:
    """The messages of some received bytes."""

    runs: tuple[Run, ...]
    done: bool
    """The dump ended in these bytes."""
    interrupted: bool
    """The kernel's tables changed during the dump in a way that may have hidden or doubled sockets."""


def split_messages(data: memoryview, body_bytes: int) -> Block:
    """Cut received bytes into runs of messages with a fixed body of ``body_bytes`` and attributes after it.

    Raises:
        NetlinkError: malformed bytes, or the kernel reported an error.
    """
    runs: list[Run] = []
    offset, interrupted = 0, False
    while offset < len(data):
        length, kind, flags = _read_header(data, offset)
        interrupted |= bool(flags & _NLM_F_DUMP_INTR)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR):
            _raise_for_error(data, offset, length, kind)
            if kind == _NLMSG_DONE:
                return Block(tuple(runs), done=True, interrupted=interrupted)
        if kind not in (SOCK_DIAG_BY_FAMILY, TCPDIAG_GETSOCK):
            offset += _align(length)
            continue
        run = _read_run(data, offset, length, HEADER_BYTES + body_bytes)
        runs.append(run)
        offset += run.stride * run.count
    return Block(tuple(runs), done=False, interrupted=interrupted)


def _read_header(data: memoryview, offset: int) -> tuple[int, int, int]:
    if len(data) - offset < HEADER_BYTES:
        raise NetlinkError(f"netlink reply ends inside a header at byte {offset} of {len(data)}")
    length, kind, flags, _, _ = _HEADER.unpack_from(data, offset)
    if not HEADER_BYTES <= length <= len(data) - offset:
        raise NetlinkError(f"netlink message at byte {offset} claims {length} of {len(data) - offset} bytes")
    return length, kind, flags


def _raise_for_error(data: memoryview, offset: int, length: int, kind: int) -> None:
    if length < _DONE_BYTES:
        if kind == _NLMSG_ERROR:
            raise NetlinkError("netlink error message without an error code")
        return
    code = -_ERROR_CODE.unpack_from(data, offset + HEADER_BYTES)[0]
    if code > _MAX_ERRNO:
        raise NetlinkError(f"netlink message with {code} where an error code should be")
    if code > 0:
        raise NetlinkError(f"the kernel refused the socket dump: {os.strerror(code)}", code)


def _read_run(data: memoryview, offset: int, length: int, body_end: int) -> Run:
    if length < body_end:
        raise NetlinkError(f"sock_diag message of {length} bytes is shorter than its {body_end} fixed bytes")
    attributes = _walk_attributes(data, offset, length, body_end)
    stride = _align(length)
    count = max((len(data) - offset) // stride, 1)
    places = [0] + [place - _ATTRIBUTE.size for place, _ in attributes.values()]
    for place in places:
        # Length, type and flags of the header are one 8-byte value; an attribute's length and type one of 4.
        dtype = np.uint64 if place == 0 else np.uint32
        count = _count_equal(np.ndarray((count,), dtype, data, offset + place, (stride,)))
    return Run(data, offset, stride, count, attributes)


def _walk_attributes(data: memoryview, offset: int, length: int, body_end: int) -> dict[int, tuple[int, int]]:
    found = {}
    place = _align(body_end)
    while place + _ATTRIBUTE.size <= length:
        size, kind = _ATTRIBUTE.unpack_from(data, offset + place)
        if not _ATTRIBUTE.size <= size <= length - place:
            raise NetlinkError(f"attribute {kind} claims {size} of {length - place} bytes")
        found[kind & _NLA_TYPE_MASK] = (place + _ATTRIBUTE.size, size - _ATTRIBUTE.size)
        place += _align(size)
    return found


def _count_equal(column: npt.NDArray[Any]) -> int:
    """How many leading values equal the first. Growing chunks keep a stream of short runs linear."""
    position, chunk = 0, 64
    while position < len(column):
        different = column[position : position + chunk] != column[0]
        if different.any():
            return position + int(different.argmax())
        position += len(different)
        chunk *= 4
    return len(column)


def _align(length: int) -> int:
    return (length + 3) & ~3


class Reducer(Protocol):
    """Aggregates runs; it must copy what it keeps."""

    def add(self, run: Run) -> None:
        """Take in one run."""


ReducerT = TypeVar("ReducerT", bound=Reducer)


def open_sock_diag() -> socket.socket:
    """A sock_diag socket of this thread's network namespace, which it keeps for life."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
    return opened


class DiagSocket:
    """Dumps sockets of one network namespace. Not thread-safe.

    After any failure the socket is closed, because the rest of a broken dump would be taken for the next one's answer.
    """

    def __init__(self, open_socket: Callable[[], socket.socket] = open_sock_diag) -> None:
        self._open = open_socket
        self._socket: socket.socket | None = None
        self._block = memoryview(bytearray(BLOCK_BYTES))
        self._known: dict[Hashable, tuple[bytes, Any]] = {}
        self.retries = 0
        """Dumps done again because the kernel interrupted them or lost messages."""

    def dump(
        self,
        kind: int,
        request: bytes,
        body_bytes: int,
        new_reducer: Callable[[], ReducerT],
        known_as: Hashable = None,
    ) -> ReducerT:
        """Run one dump and give every run to a reducer, a fresh one for each attempt.

        An interrupted dump is repeated a few times; the last attempt is taken as it is.

        Args:
            kind: type of the request.
            request: its body.
            body_bytes: length of the fixed part of each message of the answer.
            new_reducer: makes an empty reducer.
            known_as: for answers that are mostly the same as the last time: names this request and reducer. As long as
                the answer's bytes are the same, the reducer of then is returned, which therefore nobody may change.

        Raises:
            NetlinkError: the kernel refused, lost messages on every attempt, or answered nonsense.
        """
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                reducer, interrupted = self._dump_once(kind, request, body_bytes, new_reducer, known_as)
            except NetlinkError as error:
                self.close()
                if last or error.code not in _RETRIED:
                    raise
                self.retries += 1
                continue
            except BaseException:
                self.close()
                raise
            if last or not interrupted:
                return reducer
            self.retries += 1
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the socket; the next dump opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _dump_once(
        self, kind: int, request: bytes, body_bytes: int, new_reducer: Callable[[], ReducerT], known_as: Hashable
    ) -> tuple[ReducerT, bool]:
        """The reducer, and whether the kernel's tables changed during the dump."""
        try:
            self._send(kind, request)
            data = self._block[: self._fill_block()]
            answer = bytes(data) if known_as is not None and len(data) <= _DATAGRAM_BYTES else b""
            before, known = self._known.get(known_as, (b"", None))
            if known is not None and answer == before:
                return known, False
            reducer, interrupted = new_reducer(), False
            while True:
                block = split_messages(data, body_bytes)
                interrupted |= block.interrupted
                for run in block.runs:
                    reducer.add(run)
                if block.done:
                    break
                answer, data = b"", self._block[: self._fill_block()]
        except OSError as error:
            raise NetlinkError(f"cannot dump sockets over netlink: {error.strerror}", error.errno or 0) from error
        if answer and not interrupted:
            self._keep(known_as, answer, reducer)
        return reducer, interrupted

    def _keep(self, known_as: Hashable, answer: bytes, reducer: Reducer) -> None:
        if known_as not in self._known and len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[known_as] = answer, reducer

    def _send(self, kind: int, request: bytes) -> None:
        if self._socket is None:
            self._socket = self._open()
        header = _HEADER.pack(HEADER_BYTES + len(request), kind, _NLM_F_DUMP_REQUEST, _SEQUENCE, 0)
        self._socket.send(header + request)

    def _fill_block(self) -> int:
        assert self._socket is not None
        filled = 0
        while len(self._block) - filled >= _DATAGRAM_BYTES:
            received = self._socket.recv_into(self._block[filled:])
            if received == 0:
                raise NetlinkError("the netlink socket ended in the middle of a dump")
            filled += received
            if self._ends_dump(filled, filled - received):
                break
        return filled

    def _ends_dump(self, filled: int, last: int) -> bool:
        """Whether the datagram from ``last`` on is the end: it closes with DONE, or it is an error."""
        if filled < _DONE_BYTES:
            return True  # Too short for any message: let the parser refuse it.
        length, kind, _, sequence, _ = _HEADER.unpack_from(self._block, filled - _DONE_BYTES)
        ended = length == _DONE_BYTES and kind == _NLMSG_DONE and sequence == _SEQUENCE
        _, first, _, _, _ = _HEADER.unpack_from(self._block, last)
        return bool(ended or first == _NLMSG_ERROR)
