"""Follows the engine into its network namespace, or says that it cannot."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sidecar.collectors import NotVisibleError, Visibility
from sidecar.kernel.namespace import open_sock_diag_of, read_network_namespace, run_in_network_namespace
from sidecar.kernel.netlink import DiagSocket
from sidecar.target import Member

T = TypeVar("T")
_FACT = "network_namespace"
_UNKNOWN = (
    "cannot see which network namespace the engine is in and take it for ours: run the sidecar as the engine's user, "
    "or as root with CAP_SYS_PTRACE"
)
_CLOSED = (
    "the engine is in another network namespace that we may not enter, so its sockets are not visible: share its "
    "network namespace, or run the sidecar as root with CAP_SYS_ADMIN"
)


class NamespaceFollower:
    """Holds the netlink socket of the engine's network namespace; of our own while there is no engine."""

    def __init__(self, root: Path, visibility: Visibility, own: DiagSocket | None = None) -> None:
        self._root = root
        self._visibility = visibility
        self.own = own or DiagSocket()
        """The socket of our own namespace."""
        self._entered: DiagSocket | None = None
        self._current: str | None = None
        self._closed = False
        self.is_ours = True
        """Whether the engine shares our namespace, as far as can be seen; while there is none, the last one did."""

    @property
    def diag(self) -> DiagSocket:
        """The socket to dump with.

        Raises:
            NotVisibleError: the engine's sockets are in a namespace that we may not enter.
        """
        if self._closed:
            raise NotVisibleError(_CLOSED)
        return self._entered or self.own

    @property
    def retries(self) -> int:
        """Dumps of both sockets done again."""
        return self.own.retries + (self._entered.retries if self._entered else 0)

    def inside(self, members: Sequence[Member], call: Callable[[], T]) -> T:
        """The result of a call made in the engine's network namespace, for what /proc and sockets tell there only.

        Raises:
            NotVisibleError: we may not enter it, or there is no engine to enter it by.
            Exception: whatever the call raises.
        """
        if self._closed:
            raise NotVisibleError(_CLOSED)
        if self.is_ours:
            return call()
        if not members:
            raise NotVisibleError("no process to enter its namespace by")
        try:
            return run_in_network_namespace(self._root, members[0].pid, call)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotVisibleError("the process went away") from error

    def follow(self, members: Sequence[Member]) -> None:
        """Change to the namespace of the engine's processes, if need be."""
        if not members:
            self._leave()
            return
        pid = members[0].pid
        try:
            theirs, ours = read_network_namespace(self._root, pid), read_network_namespace(self._root)
        except PermissionError:
            self._visibility.hide(_FACT, _UNKNOWN)
            self._leave()
            return
        except FileNotFoundError:
            return
        self.is_ours = theirs == ours
        if self.is_ours:
            self._leave()
            self._visibility.show(_FACT)
        elif theirs != self._current:
            self._enter(pid, theirs)

    def _enter(self, pid: int, namespace: str) -> None:
        self._leave()
        try:
            opened = open_sock_diag_of(self._root, pid)
        except PermissionError:
            self._closed = True
            self._visibility.hide(_FACT, _CLOSED)
            return
        except (FileNotFoundError, ProcessLookupError):
            return
        self._current = namespace
        self._entered = DiagSocket(lambda: self._reopen(opened, pid, namespace))
        self._visibility.show(_FACT)

    def _reopen(self, opened: socket.socket, pid: int, namespace: str) -> socket.socket:
        """The socket, or after an error closed it another one, if that process is still in the same namespace."""
        if opened.fileno() >= 0:
            return opened
        if read_network_namespace(self._root, pid) != namespace:
            raise FileNotFoundError(errno.ENOENT, "the engine left its network namespace")
        return open_sock_diag_of(self._root, pid)

    def _leave(self) -> None:
        self._closed = False
        self._current = None
        if self._entered is not None:
            self._entered.close()
            self._entered = None

    def close(self) -> None:
        """Close both sockets."""
        self._leave()
        self.own.close()
