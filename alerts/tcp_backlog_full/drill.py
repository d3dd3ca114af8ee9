"""Stops the API process (SIGSTOP) and opens real connections until its accept queue overflows."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import samples, total
from enginescope.stack import Stack
from telemetry.layout import API
from telemetry.scoreboard import PageError, Reader, pages

_MARGIN: Final = 64
"""Connections beyond the limit. The kernel drops them, and drops them again at each retry."""
_OTHER_FILES: Final = 64


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Stop the process, fill the queue; continue it and close all connections on exit."""
    pid = api_pid(stack)
    depth, limit = queue(stack)
    count = limit + 1 + _MARGIN
    if depth is None or limit == 0:
        raise DrillError(f"the sidecar does not show the accept queue of port {stack.ports['engine']}")
    with _open_files(count), ExitStack() as clients:
        stamp = time.time_ns()
        try:
            os.kill(pid, signal.SIGSTOP)
            for _ in range(count):
                _connect(clients.enter_context(socket.socket()), stack.ports["engine"])
            yield stamp
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The queue is at its limit."""
    depth, limit = queue(stack)
    return depth is not None and depth >= max(limit, 1)


def queue(stack: Stack) -> tuple[int | None, int]:
    """Depth and limit of the engine's accept queue, as the sidecar shows them."""
    found, port = samples(stack.ports["sidecar"]), str(stack.ports["engine"])
    depth = total(found, "enginescope_listener_accept_queue_depth", port=port)
    limit = total(found, "enginescope_listener_accept_queue_limit", port=port)
    return None if depth is None else int(depth), int(limit or 0)


def api_pid(stack: Stack) -> int:
    """The process that owns the page with the API's role, when it belongs to the stack's engine.

    Raises:
        DrillError: there is none.
    """
    for path in pages(Path(stack.runtime_dir)):
        try:
            reader = Reader(path)
        except PageError:
            continue
        pid = reader.owner() if reader.header.role == API.role else None
        reader.close()
        if pid and os.getpgid(pid) == stack.pids["engine"]:
            return pid
    raise DrillError(f"no API process of the stack's engine has a page in {stack.runtime_dir}")


def _connect(client: socket.socket, port: int) -> None:
    client.settimeout(0)
    error = client.connect_ex(("127.0.0.1", port))
    if error not in (0, errno.EINPROGRESS):
        raise DrillError(f"cannot connect to port {port}: {os.strerror(error)}")


@contextmanager
def _open_files(count: int) -> Iterator[None]:
    """Allow this process so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise DrillError(
            f"filling an accept queue of {count - _MARGIN - 1} takes {needed} open files and the hard limit is {hard}: "
            f"raise it (ulimit -Hn), or start the engine with a smaller backlog"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
