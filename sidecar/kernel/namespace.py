"""Sockets of another network namespace: a netlink socket belongs for life to the namespace it was opened in.

Sources: setns(2), network_namespaces(7). Entering needs CAP_SYS_ADMIN; reading which one needs the engine's user or
CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from sidecar.kernel.netlink import open_sock_diag

_CLONE_NEWNET: Final = 0x40000000
T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


def read_network_namespace(root: Path, pid: int | str = "self") -> str:
    """Identity of a process's network namespace, such as ``net:[4026531840]``.

    Raises:
        OSError: the process is gone (FileNotFoundError) or not ours to see (PermissionError).
    """
    return str((root / str(pid) / "ns" / "net").readlink())


def run_in_network_namespace(root: Path, pid: int, call: Callable[[], T]) -> T:
    """The result of a call made in the network namespace of a process.

    A thread of its own enters the namespace and ends, so that no other thread ever leaves ours.

    Raises:
        OSError: the process is gone or its namespace may not be entered.
        Exception: whatever the call raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def enter_and_call() -> None:
        try:
            _enter(root / str(pid) / "ns" / "net")
            results.append(call())
        except BaseException as error:  # raised again in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=enter_and_call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def open_sock_diag_of(root: Path, pid: int) -> socket.socket:
    """A sock_diag socket in the network namespace of a process.

    Raises:
        OSError: the process is gone or its namespace may not be entered.
    """
    return run_in_network_namespace(root, pid, open_sock_diag)


def _enter(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)
