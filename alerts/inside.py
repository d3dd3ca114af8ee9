"""What drills of failures inside the engine share: its processes, its hooks for faults, and streams to keep it busy."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from enginescope.drill import DrillError, wait_healthy
from enginescope.probe import ProbeError, is_ready, samples, total
from enginescope.stack import FAULTS, Stack
from telemetry.layout import API, CORE
from telemetry.scoreboard import PageError, Reader, pages

_NAMES: Final = {API.role: "API", CORE.role: "core"}
_WAIT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 0.02
Body = dict[str, str | int | bool]
SHORT: Final[Body] = {"prompt": "hello", "temperature": 0, "max_tokens": 4}
LONG: Final[Body] = {"prompt": "hello", "temperature": 0, "max_tokens": 4000, "ignore_eos": True, "stream": True}


def process_pid(stack: Stack, role: str) -> int:
    """The process that owns the page with that role, when it belongs to the stack's engine.

    Raises:
        DrillError: there is none.
    """
    for path in pages(Path(stack.runtime_dir)):
        try:
            reader = Reader(path)
        except PageError:
            continue
        pid = reader.owner() if reader.header.role == role else None
        reader.close()
        if pid and os.getpgid(pid) == stack.pids["engine"]:
            return pid
    raise DrillError(f"no {_NAMES.get(role, role)} process of the stack's engine has a page in {stack.runtime_dir}")


@contextmanager
def stopped(pid: int) -> Iterator[int]:
    """SIGSTOP a process, SIGCONT it on exit; the value is the stamp immediately before."""
    stamp = time.time_ns()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield stamp
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def throttled(pid: int, stop: float, run: float) -> Iterator[int]:
    """Let a process run ``run`` of every ``stop + run`` seconds, as a container without enough CPU does."""
    over = threading.Event()

    def throttle() -> None:
        with suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(stop)
                os.kill(pid, signal.SIGCONT)
                over.wait(run)

    thread = threading.Thread(target=throttle, daemon=True)
    stamp = time.time_ns()
    thread.start()
    try:
        yield stamp
    finally:
        over.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def triggered(stack: Stack, name: str, text: str = "") -> Iterator[int]:
    """Ask the engine for one of its faults on purpose; on exit take that back, and end it if it lasts.

    Raises:
        DrillError: the stack has no hooks for faults.
    """
    if FAULTS not in stack.offers:
        raise DrillError(
            f"the fault {name} is triggered inside the engine: start the stack with `enginescope up --faults`"
        )
    file = stack.faults_dir / name
    stamp = time.time_ns()
    ask_for(stack, name, text)
    try:
        yield stamp
    finally:
        for leftover in (file, file.with_suffix(".now")):
            leftover.unlink(missing_ok=True)


@contextmanager
def repeated(stack: Stack, name: str, text: str) -> Iterator[int]:
    """A fault that comes once, asked for again as soon as it was met, so that it comes all the time.

    Raises:
        DrillError: the stack has no hooks for faults.
    """
    over = threading.Event()

    def again() -> None:
        while not over.wait(_AGAIN_SECONDS):
            if not (stack.faults_dir / name).exists():
                ask_for(stack, name, text)

    with triggered(stack, name, text) as stamp:
        thread = threading.Thread(target=again, daemon=True)
        thread.start()
        try:
            yield stamp
        finally:
            over.set()
            thread.join()


def ask_for(stack: Stack, name: str, text: str) -> None:
    """Put a fault's file there; it appears complete or not at all."""
    draft = stack.faults_dir / f"{name}.tmp"
    draft.write_text(text)
    draft.rename(stack.faults_dir / name)


@contextmanager
def busy(stack: Stack, streams: int = 2) -> Iterator[None]:
    """Long streams that are asked for again whenever they end; inside the block all of them run.

    Raises:
        DrillError: they do not run within a minute.
    """
    with asking(stack, streams, LONG):
        wait_until(lambda: (number(stack, "requests_running") or 0) >= streams, f"{streams} streams did not run")
        yield


@contextmanager
def asking(stack: Stack, clients: int, body: Body = SHORT) -> Iterator[None]:
    """Clients that ask for a completion again and again, each as soon as it has its answer or was refused."""
    over = threading.Event()
    threads = [threading.Thread(target=_keep_asking, args=(stack.ports["engine"], body, over)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _keep_asking(port: int, body: Body, over: threading.Event) -> None:
    while not over.wait(_POLL_SECONDS):
        with suppress(OSError):
            read_answer(port, body, over)


def read_answer(port: int, body: Body, over: threading.Event) -> str:
    """Ask for a completion and read until the end or until it is over; the status line of the answer.

    Raises:
        OSError: the connection was refused or broke.
    """
    answer = b""
    with send_request(port, body) as client:
        client.settimeout(_POLL_SECONDS)
        while not over.is_set():
            with suppress(TimeoutError):
                if not (piece := client.recv(65536)):
                    break
                answer = answer or piece
    return answer.partition(b"\r\n")[0].decode(errors="replace")


def send_request(port: int, body: Body) -> socket.socket:
    """Ask for a completion and leave the answer unread.

    Raises:
        OSError: the connection was refused or broke.
    """
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n"
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + payload)
    except OSError:
        client.close()
        raise
    return client


def number(stack: Stack, name: str, **labels: str) -> float | None:
    """A metric of the sidecar, summed over what has these labels; None when it is not there, or nobody answers."""
    try:
        return total(samples(stack.ports["sidecar"]), f"enginescope_{name}", **labels)
    except ProbeError:
        return None


def judged(stack: Stack, fault: str, **labels: str) -> bool:
    """Whether the sidecar's judge finds this fault now."""
    return bool(number(stack, "fault", fault=fault, **labels))


def wait_until(condition: Callable[[], object], otherwise: str, seconds: float = _WAIT_SECONDS) -> None:
    """Poll until a condition holds.

    Raises:
        DrillError: it does not within so many seconds; ``otherwise`` says what that means.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DrillError(f"{otherwise} within {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def replace_core(stack: Stack) -> None:
    """Kill the core, whose thread is gone for good, and wait until another one serves.

    Raises:
        DrillError: that does not happen.
    """
    old = process_pid(stack, CORE.role)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: _has_another(stack, old), "no other core came")
    wait_healthy(stack)


def _has_another(stack: Stack, old: int) -> bool:
    try:
        return process_pid(stack, CORE.role) != old and is_ready(stack.ports["engine"], "/health")
    except (DrillError, ProcessLookupError):
        return False
