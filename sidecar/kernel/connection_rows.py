"""One pass over a dump of connections: sums by port, direction and state, and copies of the rows worth a closer look.

Most connections of a server are idle. So every row is counted, but only rows with something going on (bytes queued,
segments lost or limited, a peer that left, a request without an answer) are copied, as ``BUSY`` records without
Python objects. Columns are read straight from the receive block, once each.

Sources: linux/inet_diag.h, linux/tcp.h, net/ipv4/inet_diag.c, net/ipv4/tcp.c (tcp_get_info).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.kernel.inet_diag import (
    BODY_BYTES,
    LONG_ROWS,
    SHORT_ROWS,
    SKMEMINFO,
    STATE_SLOTS,
    TcpState,
    tcp_request,
)
from sidecar.kernel.netlink import TCPDIAG_GETSOCK, DiagSocket, Run

Column = npt.NDArray[Any]

INFO: Final = 2
DETAIL: Final = 1 << (INFO - 1) | 1 << (SKMEMINFO - 1)
"""Extensions of a full-detail dump."""
PROBE_TIMER: Final = 4
"""``idiag_timer`` while the peer's window is closed (net/ipv4/inet_diag.c)."""
_BODY: Final = 0

# name, type, attribute (0: struct inet_diag_msg with its netlink header), offset in it
_FIELDS: Final = (
    ("cookie", "u8", _BODY, 60),
    ("bytes_received", "u8", INFO, 128),
    ("bytes_sent", "u8", INFO, 200),
    ("delivery_rate", "u8", INFO, 160),
    ("receiver_limited", "u8", INFO, 176),
    ("buffer_limited", "u8", INFO, 184),
    ("family", "u1", _BODY, 16),
    ("state", "u1", None, 0),
    ("timer", "u1", None, 0),
    ("probes", "u1", None, 0),
    ("receive_queue", "u4", _BODY, 72),
    ("send_queue", "u4", _BODY, 76),
    ("inode", "u4", _BODY, 84),
    ("flags", "u4", INFO, 4),
    ("unacked", "u4", INFO, 24),
    ("last_sent", "u4", INFO, 44),
    ("last_received", "u4", INFO, 52),
    ("retransmits", "u4", INFO, 100),
    ("unsent", "u4", INFO, 144),
    ("send_window", "u4", INFO, 228),
    ("receive_memory", "u4", SKMEMINFO, 0),
    ("send_memory", "u4", SKMEMINFO, 20),
)
"""Fields of a ``BUSY`` record. Those without an offset are the other bytes of the word before them."""

BUSY: Final = np.dtype([(name, kind) for name, kind, _, _ in _FIELDS])
"""One connection with something going on. Times ``last_*`` in ms ago, ``*_limited`` in µs since it was opened."""
_WORDS: Final = tuple(
    (name, attribute, offset + 4 * word)
    for name, kind, attribute, offset in _FIELDS
    if attribute is not None
    for word in range(2 if kind == "u8" else 1)
)
_INFO_ENDS: Final = {name: offset + np.dtype(kind).itemsize for name, kind, source, offset in _FIELDS if source == INFO}
"""Field -> how long struct tcp_info is at least on a kernel that has it."""
_RTT: Final = 68
NEVER_SENT: Final = 2**32 - 1
APP_LIMITED: Final = 1 << 24
"""In ``flags``: the delivery rate was measured while the application had nothing more to send."""


def info_fields(info_bytes: int) -> frozenset[str]:
    """The fields of a kernel whose ``struct tcp_info`` has this many bytes."""
    return frozenset(name for name, end in _INFO_ENDS.items() if end <= info_bytes)


def own_info_fields() -> frozenset[str]:
    """The TCP_INFO fields of this kernel, which all its network namespaces share."""
    with socket.socket() as probe:
        return info_fields(len(probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1024)))


class ConnectionRows:
    """Reduces connection dumps. A group is one port in one direction.

    Attributes:
        counts: sockets, shape (groups, STATE_SLOTS, 2): the last axis says whether a process holds the socket. Group
            ``i`` are the connections accepted on ``ports[i]``, group ``len(ports) + i`` those connecting to it.
        receive_bytes: received and unread bytes, same shape. A FIN counts as one byte.
        send_bytes: sent and unacknowledged bytes, same shape.
        rtt: sum of the smoothed round-trip times in µs, same shape.
        rtt_max: the longest of them, same shape.
        silent: ms since the last of a group's connections has sent something, shape (groups,); ``NEVER_SENT`` where
            none of those that are there has.
        overdue: established connections that a process holds, that have sent something, have nothing left to send and
            brought and sent nothing for ``idle_ms`` since, shape (groups,).
    """

    def __init__(self, ports: Sequence[int], peer_ports: Sequence[int] = (), idle_ms: int = NEVER_SENT) -> None:
        """Make an empty table; ``peer_ports`` are those of ``ports`` whose connecting ends count too."""
        self.ports = tuple(ports)
        self.groups = 2 * len(ports)
        shape = self.groups + 1, STATE_SLOTS, 2
        self._counts = np.zeros(shape, np.int64)
        self._receive, self._send, self._rtt = (np.zeros(shape) for _ in range(3))
        self._rtt_max = np.zeros(shape, np.uint32)
        self._silent = np.full(self.groups + 1, NEVER_SENT, np.uint32)
        self._overdue = np.zeros(self.groups + 1, np.int64)
        self._idle_ms = idle_ms
        self._group_of_port = _groups(self.ports, self.ports, 1)
        self._group_of_peer = _groups(self.ports, tuple(peer_ports), 1 + len(ports)) if peer_ports else None
        self._busy: list[Column] = []
        self._busy_groups: list[Column] = []

    @property
    def counts(self) -> Column:
        """See the class."""
        return self._counts[1:]

    @property
    def receive_bytes(self) -> Column:
        """See the class."""
        return self._receive[1:].astype(np.int64)

    @property
    def send_bytes(self) -> Column:
        """See the class."""
        return self._send[1:].astype(np.int64)

    @property
    def rtt(self) -> Column:
        """See the class."""
        return self._rtt[1:]

    @property
    def rtt_max(self) -> Column:
        """See the class."""
        return self._rtt_max[1:]

    @property
    def silent(self) -> Column:
        """See the class."""
        return self._silent[1:]

    @property
    def overdue(self) -> Column:
        """See the class."""
        return self._overdue[1:]

    def busy(self) -> tuple[Column, Column]:
        """Rows with something going on, as ``BUSY`` records, and the group of each; fields not seen are 0."""
        if not self._busy:
            return np.zeros(0, BUSY), np.zeros(0, np.intp)
        return np.concatenate(self._busy), np.concatenate(self._busy_groups)

    def add(self, run: Run) -> None:
        """Take in one run; sockets of other ports are left out."""
        group = self._group_of_port[run.column("u2", 20)]
        if self._group_of_peer is not None:
            group = np.where(group > 0, group, self._group_of_peer[run.column("u2", 22)])
        state = run.column("u1", 17)
        key = self._count(run, group, state)
        info = run.attributes.get(INFO, (0, 0))
        if info[1] >= _RTT + 4:
            rtt = run.column("u4", info[0] + _RTT)
            places = key.astype(np.intp)
            self._rtt += np.bincount(places, rtt, self._rtt.size).reshape(self._rtt.shape)
            np.maximum.at(self._rtt_max.reshape(-1), places, rtt)
        if info[1] >= _INFO_ENDS["bytes_sent"]:
            self._note_sent(run, group, state, info[0])
        picked = np.flatnonzero(_is_busy(run, state) & (group != 0))
        if len(picked):
            self._busy.append(_copy(run, picked))
            self._busy_groups.append(group[picked].astype(np.intp) - 1)

    def merge(self, other: ConnectionRows) -> None:
        """Add what another dump over the same ports found."""
        self._counts += other._counts
        self._receive += other._receive
        self._send += other._send
        self._rtt += other._rtt
        np.maximum(self._rtt_max, other._rtt_max, out=self._rtt_max)
        np.minimum(self._silent, other._silent, out=self._silent)
        self._overdue += other._overdue
        self._busy += other._busy
        self._busy_groups += other._busy_groups

    def _note_sent(self, run: Run, group: Column, state: Column, start: int) -> None:
        sent = np.flatnonzero(run.column("u8", start + 200))
        last_sent = run.column("u4", start + 44)[sent]
        np.minimum.at(self._silent, group[sent], last_sent)
        if self._idle_ms < NEVER_SENT:
            last_received = run.column("u4", start + 52)[sent]
            late = (np.minimum(last_sent, last_received) > self._idle_ms) & (state[sent] == TcpState.ESTABLISHED)
            late &= run.column("u4", 84)[sent] != 0
            late &= run.column("u4", 76)[sent] == 0  # else it is the client that does not read
            self._overdue += np.bincount(group[sent][late], minlength=len(self._overdue))

    def _count(self, run: Run, group: Column, state: Column) -> Column:
        key = group.astype(np.uint32)
        key *= 2 * STATE_SLOTS
        key += 2 * (state & (STATE_SLOTS - 1))
        key += run.column("u4", 84) != 0
        size, shape = self._counts.size, self._counts.shape
        self._counts += np.bincount(key, minlength=size).reshape(shape)
        queued = np.flatnonzero(run.column("u8", 72))
        if len(queued):
            queued_key = key[queued]
            self._receive += np.bincount(queued_key, run.column("u4", 72)[queued], size).reshape(shape)
            self._send += np.bincount(queued_key, run.column("u4", 76)[queued], size).reshape(shape)
        return key


def read_rows(
    diag: DiagSocket,
    ports: Sequence[int],
    peer_ports: Sequence[int] = (),
    extensions: int = 0,
    idle_ms: int = NEVER_SENT,
) -> ConnectionRows:
    """Connections of these local ports.

    Args:
        diag: the socket to dump with.
        ports: local ports.
        peer_ports: those of them whose connecting ends, where they are on this host, count too.
        extensions: ``DETAIL``, or 0 for states and queues only.
        idle_ms: how long nothing moves on a connection before it counts as ``overdue``.

    Raises:
        NetlinkError: a dump failed.
    """
    if not ports:
        return ConnectionRows(ports)

    def empty() -> ConnectionRows:
        return ConnectionRows(ports, peer_ports, idle_ms)

    parts = []
    for states, asked in ((LONG_ROWS, extensions), (SHORT_ROWS, 0)):
        request = tcp_request(states, asked, ports, peer_ports)
        parts.append(diag.dump(TCPDIAG_GETSOCK, request, BODY_BYTES, empty))
    parts[0].merge(parts[1])
    return parts[0]


def _is_busy(run: Run, state: Column) -> Column:
    busy: Column = run.column("u8", 72) != 0
    busy |= state == TcpState.CLOSE_WAIT
    busy |= run.column("u1", 18) == PROBE_TIMER
    for kind, offsets in ((SKMEMINFO, (0, 20)), (INFO, (24, 100, 144))):
        start, size = run.attributes.get(kind, (0, 0))
        for offset in offsets:
            if offset + 4 <= size:
                busy |= run.column("u4", start + offset) != 0
    start, size = run.attributes.get(INFO, (0, 0))
    if size >= _INFO_ENDS["buffer_limited"]:
        busy |= run.column("u8", start + 176) != 0
        busy |= run.column("u8", start + 184) != 0
    if size >= _INFO_ENDS["bytes_sent"]:
        busy |= run.column("u4", start + 52) < run.column("u4", start + 44)
        busy |= run.column("u8", start + 200) == 0
    return busy


def _copy(run: Run, picked: Column) -> Column:
    words = np.ndarray((run.count, run.stride // 4), np.uint32, run.data, run.offset)
    places, absent = _places(run)
    copied = words.take(picked, axis=0).take(places, axis=1)
    copied[:, absent] = 0
    return copied.view(BUSY)[:, 0]


def _places(run: Run) -> tuple[list[int], list[int]]:
    places, absent = [], []
    for index, (_, attribute, offset) in enumerate(_WORDS):
        start, size = run.attributes.get(attribute, (0, 0)) if attribute else (0, 88)
        if offset + 4 > size:
            absent.append(index)
        places.append((start + offset) // 4 if offset + 4 <= size else 0)
    return places, absent


@lru_cache(maxsize=16)
def _groups(ports: tuple[int, ...], selected: tuple[int, ...], first: int) -> npt.NDArray[np.uint16]:
    """Port as the message has it (big-endian) -> ``first`` + its place in ``ports``, else 0; shape (65536,)."""
    groups = np.zeros(65536, np.uint16)
    for port in selected:
        groups[socket.htons(port)] = ports.index(port) + first
    return groups
