"""Sockets of another process behind its back, for drills: a duplicate of the descriptor, and the epoll that watches it.

A duplicate shares the socket itself, so what is done to one is done to both. The process notices nothing: no signal, no
system call of its own fails. Sources: pidfd_getfd(2), epoll(7) ("tfd" lines of /proc/PID/fdinfo), tcp(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginescope.drill import DrillError
from sidecar.kernel.pidfd import find_descriptors

_PIDFD_GETFD: Final = 438
_HIGH: Final = 1 << 12
"""Descriptors of the helper process from here on are no number of the other process's."""
_WATCHED: Final = re.compile(r"^tfd:\s+(\d+) events:\s+([0-9a-f]+)", re.MULTILINE)
_LISTEN: Final = "0A"
_ESTABLISHED: Final = "01"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Borrowed:
    """A duplicate of a socket of another process."""

    socket: socket.socket
    pid: int
    descriptor: int
    """Its number in the other process."""

    def unwatch(self) -> Callable[[], None]:
        """Take it out of the epoll that watches it, so that the process never hears of it again; gives the way back.

        Raises:
            DrillError: no epoll of the process watches it, or the kernel does not allow it.
        """
        number, events = self._watcher()
        epoll = _duplicate(self.pid, number)
        _in_child(epoll, self, lambda poll, descriptor: poll.unregister(descriptor))

        def watch() -> None:
            _in_child(epoll, self, lambda poll, descriptor: poll.register(descriptor, events))
            os.close(epoll)

        return watch

    def _watcher(self) -> tuple[int, int]:
        """The descriptor of the epoll that watches it, and for what events."""
        for path in Path(f"/proc/{self.pid}/fdinfo").iterdir():
            try:
                found = dict(_WATCHED.findall(path.read_text()))
            except OSError:
                continue
            if events := found.get(str(self.descriptor)):
                return int(path.name), int(events, 16)
        raise DrillError(f"no epoll of process {self.pid} watches its descriptor {self.descriptor}")


def borrow_listener(pid: int, port: int) -> Borrowed:
    """The process's listening socket of a port.

    Raises:
        DrillError: it has none, or we may not touch it.
    """
    return _borrow(pid, _inodes(pid, _LISTEN, port), f"listening socket of port {port}")


def borrow_connection(pid: int, port: int, peer_port: int) -> Borrowed:
    """The process's end of the connection that came to a port from a peer's port.

    Raises:
        DrillError: it has none, or we may not touch it.
    """
    return _borrow(pid, _inodes(pid, _ESTABLISHED, port, peer_port), f"connection from port {peer_port}")


def disconnect(borrowed: socket.socket) -> None:
    """Make a TCP socket one that is bound and nothing else, whatever it was (connect(2) with AF_UNSPEC).

    Raises:
        DrillError: the kernel does not do it.
    """
    nowhere = ctypes.create_string_buffer(16)  # struct sockaddr with sa_family 0
    if _libc.connect(borrowed.fileno(), nowhere, len(nowhere)) != 0:
        raise DrillError(f"cannot disconnect a socket: {os.strerror(ctypes.get_errno())}")


def _borrow(pid: int, inodes: set[int], what: str) -> Borrowed:
    try:
        descriptors = find_descriptors(Path("/proc"), pid, inodes) if inodes else []
        if not descriptors:
            raise DrillError(f"process {pid} has no {what}")
        duplicate = _duplicate(pid, descriptors[0])
    except OSError as error:
        raise DrillError(f"cannot touch the {what} of process {pid}: {error.strerror}") from error
    return Borrowed(socket.socket(fileno=duplicate), pid, descriptors[0])


def _inodes(pid: int, state: str, port: int, peer_port: int | None = None) -> set[int]:
    """Inodes of TCP sockets in the namespace of a process."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for row in map(str.split, lines):
            local, peer = (int(address.rpartition(":")[2], 16) for address in row[1:3])
            if row[3] == state and local == port and peer_port in (None, peer):
                found.add(int(row[9]))
    return found


def _duplicate(pid: int, descriptor: int) -> int:
    process = os.pidfd_open(pid)
    try:
        copy: int = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return copy


def _in_child(epoll: int, borrowed: Borrowed, call: Callable[[select.epoll, int], None]) -> None:
    """Call with the epoll and the socket under the number that it has in the other process.

    An epoll knows a file by its descriptor's number too. A child can use every number without harm.
    """
    child = os.fork()
    if child == 0:
        try:
            high = fcntl.fcntl(epoll, fcntl.F_DUPFD, _HIGH)
            os.dup2(borrowed.socket.fileno(), borrowed.descriptor)
            call(select.epoll.fromfd(high), borrowed.descriptor)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
        finally:
            os._exit(1)  # whatever else happened, this copy of the program must not go on
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise DrillError(f"cannot change what process {borrowed.pid} watches: {os.strerror(code)}")
