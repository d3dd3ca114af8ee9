"""Queued bytes of AF_UNIX stream sockets by path, from sock_diag.

Only the bound socket and those accepted from it carry the name; the connecting ends are found as their peers, by
inode. A receiver shows unread bytes, a sender the kernel memory that its unread bytes take (about twice as much).

Sources: linux/unix_diag.h, net/unix/diag.c, sock_diag(7).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.kernel.netlink import SOCK_DIAG_BY_FAMILY, DiagSocket, Run

AF_UNIX: Final = 1
BODY_BYTES: Final = 16
# nlmsghdr, then struct unix_diag_msg
_MESSAGE: Final = np.dtype(
    [
        ("header", "V16"),
        ("family", "u1"),
        ("type", "u1"),
        ("state", "u1"),
        ("pad", "u1"),
        ("inode", "u4"),
        ("cookie", "u8"),
    ]
)
_REQUEST: Final = struct.Struct("=BBHIII8x")  # struct unix_diag_req: family, protocol, pad, states, ino, show, cookie
_SHOW: Final = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 5  # UDIAG_SHOW_NAME, _PEER, _RQLEN, _MEMINFO
_SHOW_NAMES: Final = 1 << 0 | 1 << 1  # UDIAG_SHOW_NAME, UDIAG_SHOW_VFS
_ALL_STATES: Final = 0xFFFFFFFF
_NAME: Final = 0
_PEER: Final = 2
_QUEUES: Final = 4
_MEMORY: Final = 5
_FILE: Final = 1
_QUEUES_DTYPE: Final = np.dtype([("receive", "u4"), ("send", "u4")])
_MEMORY_DTYPE: Final = np.dtype(("u4", (9,)))  # SK_MEMINFO_* of linux/sock_diag.h
_SEND_BUFFER: Final = 3
_LISTEN: Final = 10  # unix sockets use TCP's numbers for states
_CLOSED: Final = 7
_SOCKET: Final = np.dtype(
    [
        ("inode", "u4"),
        ("peer", "u4"),
        ("receive", "u4"),
        ("send", "u4"),
        ("send_buffer", "u4"),
        ("path", "i2"),
        ("listens", "?"),
    ]
)
_WRITABLE_SHARE: Final = 4
_UNKNOWN_BUFFER: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class UnixQueues:
    """What waits in the connected sockets of one path, both ends together."""

    sockets: int
    receive_bytes: int
    """Unread bytes at the receiving ends."""
    send_bytes: int
    """Kernel memory of unread bytes, charged to the sending ends."""
    pending: int = 0
    """Connections that wait for accept() at the listening sockets."""
    backlog: int = 0
    """Connections that may wait there: one more than this makes connect() block, or fail with EAGAIN."""
    blocked: int = 0
    """Sending ends that poll as not writable, which is above a quarter of their buffer (unix_writable())."""


class UnixSockets:
    """Collects all unix sockets, those of the wanted paths marked with the path's index."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self._paths = tuple(paths)
        self._parts: list[npt.NDArray[Any]] = []
        self._queues: list[UnixQueues] | None = None

    def add(self, run: Run) -> None:
        """Copy the columns of one run."""
        messages = run.column(_MESSAGE)
        rows = np.zeros(run.count, _SOCKET)
        rows["inode"] = messages["inode"]
        rows["listens"] = messages["state"] == _LISTEN
        rows["path"] = self._path_indexes(run)
        peers = run.attribute(_PEER, "u4")
        if peers is not None:
            rows["peer"] = peers
        queues = run.attribute(_QUEUES, _QUEUES_DTYPE)
        if queues is not None:
            rows["receive"], rows["send"] = queues["receive"], queues["send"]
        memory = run.attribute(_MEMORY, _MEMORY_DTYPE)
        rows["send_buffer"] = _UNKNOWN_BUFFER if memory is None else memory[:, _SEND_BUFFER]
        self._parts.append(rows)

    def _path_indexes(self, run: Run) -> npt.NDArray[np.int16]:
        found = np.full(run.count, -1, np.int16)
        offset, size = run.attributes.get(_NAME, (0, 0))
        if not size:
            return found
        # A fixed-size "S" value compares without its trailing NUL, which names in the file system carry.
        names = run.column(f"S{size}", offset)
        for index, path in enumerate(self._paths):
            if size - 1 <= len(path) <= size:
                found[names == path] = index
        return found

    def queues(self) -> list[UnixQueues]:
        """The queues of each path, in the order of the paths; of all that was collected before the first call."""
        if self._queues is None:
            rows = np.concatenate(self._parts) if self._parts else np.zeros(0, _SOCKET)
            self._queues = [self._sum(rows, index) for index in range(len(self._paths))]
        return self._queues

    @staticmethod
    def _sum(rows: npt.NDArray[Any], index: int) -> UnixQueues:
        bound = rows["path"] == index
        listening = rows[bound & rows["listens"]]
        connected = bound & ~rows["listens"]
        peers = rows["peer"][connected]
        own = rows[connected | (np.isin(rows["inode"], peers[peers > 0]))]
        blocked = own["send"].astype(np.int64) * _WRITABLE_SHARE > own["send_buffer"]
        return UnixQueues(
            sockets=len(own),
            receive_bytes=_total(own["receive"]),
            send_bytes=_total(own["send"]),
            pending=_total(listening["receive"]),
            backlog=_total(listening["send"]),
            blocked=int(np.count_nonzero(blocked)),
        )


def _total(column: npt.NDArray[Any]) -> int:
    return int(column.sum(dtype=np.int64))


class BoundFiles:
    """Collects what unix sockets are bound to in the file system."""

    def __init__(self) -> None:
        self.inodes: set[int] = set()
        """Inode numbers of their files, in the 32 bits that the kernel gives."""
        self.names: set[bytes] = set()

    def add(self, run: Run) -> None:
        """Take in one run."""
        files = run.attribute(_FILE, "u4")
        if files is not None:
            self.inodes.update(files.tolist())
        offset, size = run.attributes.get(_NAME, (0, 0))
        if size:
            self.names.update(run.column(f"S{size}", offset).tolist())


def unix_request() -> bytes:
    """The body of a dump request for every unix socket with name, peer, queue lengths and buffer sizes."""
    return _REQUEST.pack(AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW)


def read_unix_queues(diag: DiagSocket, paths: Sequence[bytes]) -> list[UnixQueues]:
    """Queued bytes of each path's connected sockets; abstract names start with a NUL byte.

    Raises:
        NetlinkError: the dump failed.
    """
    if not paths:
        return []
    known_as = "unix", *paths
    return diag.dump(SOCK_DIAG_BY_FAMILY, unix_request(), BODY_BYTES, lambda: UnixSockets(paths), known_as).queues()


def by_role(roles: Iterable[str], queues: Iterable[UnixQueues]) -> dict[str, UnixQueues]:
    """The queues of all paths of a role as one; of their accept queues the fullest counts."""
    found: dict[str, UnixQueues] = {}
    for role, one in zip(roles, queues, strict=True):
        found[role] = _together(found[role], one) if role in found else one
    return found


def _together(first: UnixQueues, second: UnixQueues) -> UnixQueues:
    fullest = max(first, second, key=lambda one: one.pending / one.backlog if one.backlog else -1.0)
    return UnixQueues(
        sockets=first.sockets + second.sockets,
        receive_bytes=first.receive_bytes + second.receive_bytes,
        send_bytes=first.send_bytes + second.send_bytes,
        pending=fullest.pending,
        backlog=fullest.backlog,
        blocked=first.blocked + second.blocked,
    )


def read_bound_files(diag: DiagSocket) -> BoundFiles:
    """What sockets of the namespace are bound to that listen or have no peer.

    Raises:
        NetlinkError: the dump failed.
    """
    request = _REQUEST.pack(AF_UNIX, 0, 0, 1 << _LISTEN | 1 << _CLOSED, 0, _SHOW_NAMES)
    return diag.dump(SOCK_DIAG_BY_FAMILY, request, BODY_BYTES, BoundFiles)
