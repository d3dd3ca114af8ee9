"""Queued bytes of AF_UNIX stream sockets by path, from sock_diag.

Only the bound socket and those accepted from it carry the name; the connecting ends are found as their peers, by
inode. A receiver shows unread bytes, a sender the kernel memory that its unread bytes take (about twice as much).

Sources: linux/unix_diag.h, net/unix/diag.c, sock_diag(7).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
_SHOW: Final = 1 << 0 | 1 << 2 | 1 << 4  # UDIAG_SHOW_NAME, _PEER, _RQLEN
_ALL_STATES: Final = 0xFFFFFFFF
_NAME: Final = 0
_PEER: Final = 2
_QUEUES: Final = 4
_QUEUES_DTYPE: Final = np.dtype([("receive", "u4"), ("send", "u4")])
_LISTEN: Final = 10  # unix sockets use TCP's number for it
_SOCKET: Final = np.dtype(
    [("inode", "u4"), ("peer", "u4"), ("receive", "u4"), ("send", "u4"), ("path", "i2"), ("listens", "?")]
)


@dataclass(frozen=True, slots=True)
class UnixQueues:
    """What waits in the connected sockets of one path, both ends together."""

    sockets: int
    receive_bytes: int
    """Unread bytes at the receiving ends."""
    send_bytes: int
    """Kernel memory of unread bytes, charged to the sending ends."""


class UnixSockets:
    """Collects all unix sockets, those of the wanted paths marked with the path's index."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self._paths = tuple(paths)
        self._parts: list[npt.NDArray[Any]] = []

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
        """The queues of each path, in the order of the paths."""
        rows = np.concatenate(self._parts) if self._parts else np.zeros(0, _SOCKET)
        return [self._sum(rows, index) for index in range(len(self._paths))]

    @staticmethod
    def _sum(rows: npt.NDArray[Any], index: int) -> UnixQueues:
        connected = (rows["path"] == index) & ~rows["listens"]
        peers = rows["peer"][connected]
        own = rows[connected | (np.isin(rows["inode"], peers[peers > 0]))]
        return UnixQueues(len(own), int(own["receive"].sum(dtype=np.int64)), int(own["send"].sum(dtype=np.int64)))


def unix_request() -> bytes:
    """The body of a dump request for every unix socket with name, peer and queue lengths."""
    return _REQUEST.pack(AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW)


def read_unix_queues(diag: DiagSocket, paths: Sequence[bytes]) -> list[UnixQueues]:
    """Queued bytes of each path's connected sockets; abstract names start with a NUL byte.

    Raises:
        NetlinkError: the dump failed.
    """
    if not paths:
        return []
    return diag.dump(SOCK_DIAG_BY_FAMILY, unix_request(), BODY_BYTES, lambda: UnixSockets(paths)).queues()
