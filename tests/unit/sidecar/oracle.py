"""sock_diag messages written and read field by field with ``struct``: slow, and independent of the code under test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HEADER = struct.Struct("=IHHII")
INET = struct.Struct("=BBBB2s2s16s16sIQIIIII")
UNIX = struct.Struct("=BBBBIQ")
SKMEMINFO, V6ONLY, MARK, CGROUP = 7, 11, 15, 21
NAME, PEER, QUEUES = 0, 2, 4


@dataclass(frozen=True)
class InetSocket:
    port: int
    state: int = 1
    receive: int = 0
    send: int = 0
    inode: int = 0
    cookie: int = 0
    drops: int | None = None
    family: int = 2
    peer_port: int = 1
    extras: tuple[tuple[int, bytes], ...] = ()
    address: bytes = b""
    peer_address: bytes = b""


@dataclass(frozen=True)
class UnixSocket:
    inode: int
    state: int = 1
    name: bytes = b""
    peer: int = 0
    receive: int = 0
    send: int = 0


def attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("=HH", size, kind) + payload + b"\0" * (-size % 4)


def message(body: bytes, kind: int = 18, flags: int = 2, sequence: int = 1) -> bytes:
    size = HEADER.size + len(body)
    return HEADER.pack(size, kind, flags, sequence, 0) + body + b"\0" * (-size % 4)


def done(code: int = 0) -> bytes:
    return message(struct.pack("=i", code), kind=3)


def error(code: int) -> bytes:
    return message(struct.pack("=i", -code) + b"\0" * 16, kind=2, flags=0)


def inet_message(one: InetSocket, flags: int = 2) -> bytes:
    ports = struct.pack(">H", one.port), struct.pack(">H", one.peer_port)
    queues = one.receive, one.send
    body = INET.pack(
        one.family, one.state, 0, 0, *ports, one.address, one.peer_address, 0, one.cookie, 0, *queues, 0, one.inode
    )
    for kind, payload in one.extras:
        body += attribute(kind, payload)
    if one.drops is not None:
        body += attribute(SKMEMINFO, struct.pack("=9I", *range(8), one.drops))
    return message(body, flags=flags)


def unix_message(one: UnixSocket) -> bytes:
    body = UNIX.pack(1, 1, one.state, 0, one.inode, one.inode)
    if one.name:
        body += attribute(NAME, one.name)
    if one.peer:
        body += attribute(PEER, struct.pack("=I", one.peer))
    return message(body + attribute(QUEUES, struct.pack("=II", one.receive, one.send)), kind=20)


def read_inet(data: bytes) -> list[InetSocket]:
    """Every socket of a reply, up to its end."""
    found = []
    offset = 0
    while offset < len(data):
        size, kind, _, _, _ = HEADER.unpack_from(data, offset)
        if kind == 3:
            break
        values = INET.unpack_from(data, offset + 16)
        drops = None
        place = 16 + INET.size
        while place + 4 <= size:
            length, attribute_kind = struct.unpack_from("=HH", data, offset + place)
            if attribute_kind == SKMEMINFO:
                drops = struct.unpack_from("=9I", data, offset + place + 4)[8]
            place += length + -length % 4
        port, peer_port = struct.unpack(">HH", values[4] + values[5])
        found.append(
            InetSocket(port, values[1], values[11], values[12], values[14], values[9], drops, values[0], peer_port)
        )
        offset += size + -size % 4
    return found


@dataclass
class FakeSocket:
    """Answers each request with datagrams, stamped with its sequence number."""

    answer: Callable[[bytes], Iterable[bytes | OSError]]
    closed: bool = False
    _pending: list[bytes | OSError] = field(default_factory=list)

    def send(self, request: bytes) -> int:
        sequence = HEADER.unpack_from(request)[3]
        self._pending = [
            part if isinstance(part, OSError) else stamp(part, sequence) for part in self.answer(request[16:])
        ]
        return len(request)

    def recv_into(self, buffer: memoryview) -> int:
        if not self._pending:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        part = self._pending.pop(0)
        if isinstance(part, OSError):
            raise part
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self.closed = True


def stamp(datagram: bytes, sequence: int) -> bytes:
    """The datagram with this sequence number in each message."""
    stamped = bytearray(datagram)
    offset = 0
    while offset + 16 <= len(stamped):
        struct.pack_into("=I", stamped, offset + 8, sequence)
        size = struct.unpack_from("=I", stamped, offset)[0]
        offset += max(size + -size % 4, 16)
    return bytes(stamped)


def fake_opener(answer: Callable[[bytes], Iterable[bytes | OSError]]) -> Callable[[], socket.socket]:
    return lambda: FakeSocket(answer)  # type: ignore[return-value]
