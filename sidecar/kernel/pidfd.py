"""A socket option of another process's socket, by a duplicate of its descriptor that is closed at once.

sock_diag has no TCP_NODELAY. Source: pidfd_getfd(2), Linux 5.6 and later; needs the right to ptrace the process.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sidecar.kernel.procfs import list_names, parse_socket_link

_PIDFD_GETFD: Final = 438  # the same number on every architecture
_MOST_DESCRIPTORS: Final = 2000
_libc = ctypes.CDLL(None, use_errno=True)


def find_descriptors(root: Path, pid: int, inodes: Collection[int]) -> list[int]:
    """Descriptors of a process behind these sockets; none for a process with very many, to keep this cheap.

    Raises:
        OSError: the process is gone (FileNotFoundError, ProcessLookupError) or not ours to see (PermissionError).
    """
    directory = os.open(root / str(pid) / "fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = list_names(directory)
        return [int(name) for name in names if len(names) <= _MOST_DESCRIPTORS and _inode(name, directory) in inodes]
    finally:
        os.close(directory)


def _inode(name: str, directory: int) -> int | None:
    try:
        return parse_socket_link(os.readlink(name, dir_fd=directory))
    except FileNotFoundError:  # closed since the listing
        return None


def read_nodelay(pid: int, descriptor: int) -> bool:
    """Whether TCP_NODELAY is set on a TCP socket of another process.

    Raises:
        OSError: the process or the descriptor is gone, or we may not.
    """
    process = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(process)
    with socket.socket(fileno=copy) as duplicate:
        return bool(duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
