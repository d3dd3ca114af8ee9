"""What drills with connections share: the engine's API process, its limit of open files, and a crowd of clients."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from alerts.inside import process_pid
from enginescope.drill import DrillError
from enginescope.stack import Stack
from telemetry.layout import API

_OTHER_FILES: Final = 64
_STEP_SECONDS: Final = 0.1


def api_pid(stack: Stack) -> int:
    """The process that owns the page with the API's role, when it belongs to the stack's engine.

    Raises:
        DrillError: there is none.
    """
    return process_pid(stack, API.role)


def open_files(pid: int) -> int:
    """How many files a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """Allow this process so many connections.

    Raises:
        DrillError: the hard limit does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + len(os.listdir("/proc/self/fd")) + _OTHER_FILES  # noqa: PTH208
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise DrillError(
            f"{count} connections take {needed} open files and the hard limit is {hard}: raise it (ulimit -Hn), or "
            f"start the engine with a smaller backlog or limit"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def soft_limit(pid: int, files: int) -> Iterator[None]:
    """Give another process another soft limit of open files; the old one on exit.

    Raises:
        DrillError: the kernel does not allow it.
    """
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, hard))
    except (OSError, ValueError) as error:
        raise DrillError(f"cannot set the open-files limit of process {pid} to {files}: {error}") from error
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Idle clients of one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[socket.socket] = []

    def grow_to(self, count: int) -> None:
        """Connect until there are so many.

        Raises:
            DrillError: a connection was refused or timed out.
        """
        while len(self._clients) < count:
            try:
                self._clients.append(socket.create_connection(("127.0.0.1", self._port), timeout=5))
            except OSError as error:
                number = len(self._clients) + 1
                raise DrillError(f"connection {number} to port {self._port} failed: {error}") from error

    def leave(self) -> None:
        """Close them all."""
        while self._clients:
            self._clients.pop().close()


@contextmanager
def crowd(port: int, most: int) -> Iterator[Crowd]:
    """Up to so many clients, which leave on exit."""
    clients = Crowd(port)
    with room_for(most):
        try:
            yield clients
        finally:
            clients.leave()


@contextmanager
def growing_crowd(port: int, most: int, curve: Callable[[float], float]) -> Iterator[None]:
    """Clients that come in the background: ``curve`` has their number after so many seconds.

    Raises:
        DrillError: on exit, when one of them could not connect.
    """
    stop, failures = threading.Event(), list[DrillError]()

    def grow(clients: Crowd) -> None:
        seconds = 0.0
        try:
            while not stop.wait(_STEP_SECONDS):
                seconds += _STEP_SECONDS
                clients.grow_to(min(int(curve(seconds)), most))
        except DrillError as error:
            failures.append(error)

    with crowd(port, most) as clients:
        thread = threading.Thread(target=grow, args=(clients,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
    if failures:
        raise failures[0]
