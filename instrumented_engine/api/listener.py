"""The HTTP socket: bound, listening, and read back to see what the kernel made of what was asked."""

from __future__ import annotations

import errno
import logging
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from instrumented_engine.config import EngineSettings

_log = logging.getLogger(__name__)
_SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")
_TCP_LISTEN: Final = 10
# struct tcp_info (linux/tcp.h): the state, seven bytes of flags, then 4-byte fields. On a listening socket the fifth is
# the length of the accept queue and the sixth its limit.
_TCP_INFO: Final = struct.Struct("=B7x6I")


class StartError(Exception):
    """The server cannot start; the message is one sentence."""


def bind(settings: EngineSettings) -> socket.socket:
    """The HTTP socket, listening.

    Raises:
        StartError: the address is taken or is not ours.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it. The kernel then resets a connection whose peer has taken nothing for so long, also
    # while its window is closed, which no timer of an HTTP server does: a client that stops reading is let go.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.write_timeout * 1000))
    try:
        listener.bind((settings.host, settings.port))
        # SO_REUSEADDR lets a second socket bind beside one that does not listen yet; listening now settles it.
        listener.listen(settings.backlog)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {settings.port} is in use on {settings.host}: choose another with --port"
            ) from error
        raise StartError(f"cannot listen on {where}: {error.strerror}") from error
    return listener


@dataclass(frozen=True, slots=True)
class ListenState:
    """What the kernel says about a socket."""

    listening: bool
    backlog: int
    somaxconn: int | None
    """None where it cannot be read."""


def read_listen_state(listener: socket.socket) -> ListenState:
    """Ask the kernel; the backlog is the one in force, after the cap."""
    accepting = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    state, *fields = _TCP_INFO.unpack(info)
    return ListenState(bool(accepting) and state == _TCP_LISTEN, fields[5], _read_somaxconn())


def _read_somaxconn() -> int | None:
    try:
        return int(_SOMAXCONN.read_text())
    except OSError:
        return None


def verify(listener: socket.socket, asked_backlog: int) -> None:
    """Make sure that the socket really listens; warn when its accept queue is smaller than asked.

    Raises:
        StartError: it is bound and does not listen.
    """
    state = read_listen_state(listener)
    host, port = listener.getsockname()[:2]
    if not state.listening:
        raise StartError(f"the socket on {host}:{port} is bound and does not listen")
    if complaint := backlog_complaint(asked_backlog, state):
        _log.warning("%s", complaint)


def backlog_complaint(asked: int, state: ListenState) -> str:
    """One sentence with both numbers when the kernel granted less than was asked, else nothing."""
    if state.backlog >= asked:
        return ""
    limit = "unreadable here" if state.somaxconn is None else str(state.somaxconn)
    return (
        f"--backlog {asked} asks for more than the kernel grants: the accept queue holds {state.backlog} connections "
        f"(net.core.somaxconn is {limit}); raise the sysctl and start again, for it is read in listen()"
    )
