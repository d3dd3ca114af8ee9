"""TCP sockets from sock_diag: requests, their messages, accept queues of listeners, and ports bound but not listening.

A LISTEN dump never touches the table of connections, so it costs the same on a busy host (50 µs). Connection dumps
walk the whole table; the kernel filters ports before it copies. TIME_WAIT and half-open rows are shorter than the
others and come in a dump of their own, since mixed lengths would break the stream into short runs.

The legacy request (TCPDIAG_GETSOCK, family 0) answers for IPv4 and IPv6 in one walk.
Sources: linux/inet_diag.h, net/ipv4/inet_diag.c, sock_diag(7).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.kernel.netlink import TCPDIAG_GETSOCK, DiagSocket, Run


class TcpState(IntEnum):
    """States as the kernel numbers them (net/tcp_states.h), named as OpenTelemetry names them."""

    ESTABLISHED = 1
    SYN_SENT = 2
    SYN_RECEIVED = 3
    FIN_WAIT_1 = 4
    FIN_WAIT_2 = 5
    TIME_WAIT = 6
    CLOSED = 7
    CLOSE_WAIT = 8
    LAST_ACK = 9
    LISTEN = 10
    CLOSING = 11
    BOUND_INACTIVE = 13
    """Bound and neither listening nor connected; as a state of the mask only, since its rows say CLOSED."""


STATE_SLOTS: Final = 16
BODY_BYTES: Final = 72
SHORT_ROWS: Final = 1 << TcpState.TIME_WAIT | 1 << TcpState.SYN_RECEIVED
LONG_ROWS: Final = 0xFFF & ~(SHORT_ROWS | 1 << TcpState.LISTEN)

# nlmsghdr, then struct inet_diag_msg
MESSAGE: Final = np.dtype(
    [
        ("header", "V16"),
        ("family", "u1"),
        ("state", "u1"),
        ("timer", "u1"),
        ("retransmits", "u1"),
        ("port", ">u2"),
        ("peer_port", ">u2"),
        ("address", "V16"),
        ("peer_address", "V16"),
        ("interface", "u4"),
        ("cookie", "u8"),
        ("expires", "u4"),
        ("receive_queue", "u4"),
        ("send_queue", "u4"),
        ("uid", "u4"),
        ("inode", "u4"),
    ]
)
SKMEMINFO: Final = 7
SKMEMINFO_BIT: Final = 1 << (SKMEMINFO - 1)
_SKMEM: Final = np.dtype(("u4", (9,)))
_SKMEM_DROPS: Final = 8

LISTENER: Final = np.dtype(
    [("port", "u2"), ("inode", "u4"), ("cookie", "u8"), ("depth", "u4"), ("limit", "u4"), ("drops", "u4")]
)
"""One LISTEN row: depth and limit of its accept queue in connections, drops since it was created."""

_REQUEST: Final = struct.Struct("=BBBB48xII")  # struct inet_diag_req: family, lengths, ext, sockid, states, dbs
_BYTECODE_OP: Final = struct.Struct("=BBH")  # struct inet_diag_bc_op: code, yes, no
_JUMP: Final = 1
_LOCAL_PORT_EQUAL: Final = 11
_PEER_PORT_EQUAL: Final = 12
_BYTECODE_ATTRIBUTE: Final = 1


def tcp_request(states: int, extensions: int = 0, ports: Sequence[int] = (), peer_ports: Sequence[int] = ()) -> bytes:
    """The body of a dump request.

    Args:
        states: mask of ``1 << TcpState``.
        extensions: mask of ``1 << (attribute - 1)``.
        ports: local ports to select; with ``peer_ports`` either will do, and without both all sockets come.
        peer_ports: remote ports to select.
    """
    request = _REQUEST.pack(0, 0, 0, extensions, states, 0)
    program = port_filter(ports, peer_ports)
    return request + struct.pack("=HH", 4 + len(program), _BYTECODE_ATTRIBUTE) + program if program else request


def port_filter(ports: Sequence[int], peer_ports: Sequence[int] = ()) -> bytes:
    """inet_diag bytecode that accepts these ports: running off its end accepts, jumping past it rejects."""
    tests = [(_LOCAL_PORT_EQUAL, port) for port in ports] + [(_PEER_PORT_EQUAL, port) for port in peer_ports]
    total = len(tests) * 3 * _BYTECODE_OP.size - _BYTECODE_OP.size
    program = b""
    for code, port in tests:
        program += _BYTECODE_OP.pack(code, 8, 12) + _BYTECODE_OP.pack(0, 0, port)
        if len(program) < total:
            program += _BYTECODE_OP.pack(_JUMP, 4, total - len(program))
    return program


_LISTENERS: Final = tcp_request(1 << TcpState.LISTEN, SKMEMINFO_BIT)


class ListenerRows:
    """Collects LISTEN rows."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    def add(self, run: Run) -> None:
        """Copy the columns of one run."""
        messages = run.column(MESSAGE)
        rows = np.zeros(run.count, LISTENER)
        for name in ("port", "inode", "cookie"):
            rows[name] = messages[name]
        rows["depth"] = messages["receive_queue"]
        rows["limit"] = messages["send_queue"]
        memory = run.attribute(SKMEMINFO, _SKMEM)
        if memory is not None:
            rows["drops"] = memory[:, _SKMEM_DROPS]
        self._parts.append(rows[messages["state"] == TcpState.LISTEN])

    def rows(self) -> npt.NDArray[Any]:
        """All rows as a ``LISTENER`` array; the same one each time."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.zeros(0, LISTENER)]
        return self._parts[0]


def read_listeners(diag: DiagSocket) -> npt.NDArray[Any]:
    """Every TCP listener of the namespace, as a ``LISTENER`` array: the last one itself while nothing has changed.

    Raises:
        NetlinkError: the dump failed.
    """
    return diag.dump(TCPDIAG_GETSOCK, _LISTENERS, BODY_BYTES, ListenerRows, known_as=_LISTENERS).rows()


class PortCounts:
    """Counts rows by local port, whatever their state."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, run: Run) -> None:
        """Count one run."""
        for port in run.column(MESSAGE)["port"].tolist():
            self.counts[port] = self.counts.get(port, 0) + 1


def read_bound(diag: DiagSocket, ports: Sequence[int]) -> dict[int, int]:
    """Sockets bound to each of these ports that neither listen nor are connected.

    Kernels before 6.8 show none of them; ask ``shows_bound`` first.

    Raises:
        NetlinkError: the dump failed.
    """
    request = tcp_request(1 << TcpState.BOUND_INACTIVE, ports=ports)
    counts = diag.dump(TCPDIAG_GETSOCK, request, BODY_BYTES, PortCounts).counts if ports else {}
    return {port: counts.get(port, 0) for port in ports}


def shows_bound(diag: DiagSocket) -> bool:
    """Whether this kernel dumps bound sockets, tried with one of our own in the namespace of ``diag``.

    Raises:
        NetlinkError: the dump failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        return read_bound(diag, [port])[port] > 0
