"""Runs the processes of a stack: honcho's processes and events, with restarts instead of its all-or-nothing loop.

honcho gives each command a process group of its own and turns its output and end into events. Its own ``loop`` ends
everything when one process ends; here a dead process is started again after a pause, because a stack that watches an
engine has to survive that engine's death.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from honcho.process import Process

from telemetry.scoreboard import start_ticks

_RESTART_SECONDS: Final = (1, 2, 4, 8, 15, 30)
_STABLE_SECONDS: Final = 60
_TERMINATE_SECONDS: Final = 3.5
_LOG_TAIL_LINES: Final = 20


@dataclass(eq=False)
class Service:
    """One supervised command. Its output goes to ``log``."""

    name: str
    command: str
    environment: Mapping[str, str]
    log: Path
    on_line: Callable[[str], None] | None = None
    """Gets each line of output instead of the log."""
    restart: bool = True
    pid: int = 0
    """Leader of its process group while it runs, else 0."""
    starts: int = 0
    status: int | None = None
    """Exit status of its last run."""
    tail: list[str] = field(default_factory=list)
    _keeper: Any = None
    _started: float = 0.0
    _due: float = 0.0
    _file: IO[bytes] | None = None


class Supervisor:
    """Starts services, keeps them going, and stops every process that they started."""

    def __init__(self, report: Callable[[str], None], is_held: Callable[[str], bool]) -> None:
        """``report`` gets sentences for the operator; ``is_held`` says which dead services stay dead."""
        self.services: dict[str, Service] = {}
        self._events: multiprocessing.Queue[Any] = multiprocessing.Queue()
        self._report = report
        self._is_held = is_held
        self._groups: set[int] = set()

    def start(self, service: Service) -> None:
        """Start a service for the first time."""
        self.services[service.name] = service
        service._file = service.log.open("ab", buffering=0)
        self._spawn(service)

    def poll(self, timeout: float = 0.1) -> None:
        """Handle what happened; wait at most ``timeout`` seconds for something."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._handle(self._events.get(timeout=max(deadline - time.monotonic(), 0.001)))
            except queue.Empty:
                break
        for service in self.services.values():
            self._look_after(service)

    def stop(self) -> None:
        """End every process of every group, politely first; returns within 5 s."""
        for service in reversed(self.services.values()):
            _signal_group(service.pid, signal.SIGTERM)
        deadline = time.monotonic() + _TERMINATE_SECONDS
        while time.monotonic() < deadline and any(_group_alive(group) for group in self._groups):
            time.sleep(0.05)
        for group in self._groups:
            _signal_group(group, signal.SIGCONT)
            _signal_group(group, signal.SIGKILL)
        for service in self.services.values():
            if service._keeper is not None:
                service._keeper.join(0.3)
                service._keeper.kill()
            if service._file is not None:
                service._file.close()

    def _spawn(self, service: Service) -> None:
        process = Process(f"exec {service.command}", name=service.name, env=dict(service.environment))
        service._keeper = multiprocessing.get_context("fork").Process(
            name=f"keeper-{service.name}", target=process.run, args=(self._events, True), daemon=True
        )
        service._keeper.start()
        service._started = time.monotonic()
        service._due = 0.0
        service.starts += 1

    def _handle(self, message: Any) -> None:
        service = self.services[message.name]
        if message.type == "start":
            service.pid = message.data["pid"]
            self._groups.add(service.pid)
        elif message.type == "line":
            self._take_line(service, message.data)
        elif message.type == "stop":
            self._ended(service, message.data["returncode"])

    def _take_line(self, service: Service, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if service.on_line is not None:
            service.on_line(text)
        elif service._file is not None:
            service._file.write(line)
            service.tail = [*service.tail[1 - _LOG_TAIL_LINES :], text]

    def _ended(self, service: Service, status: int) -> None:
        service.status = status
        _signal_group(service.pid, signal.SIGKILL)
        service.pid = 0
        if not service.restart:
            return
        runs = 0 if time.monotonic() - service._started > _STABLE_SECONDS else service.starts - 1
        pause = _RESTART_SECONDS[min(runs, len(_RESTART_SECONDS) - 1)]
        service._due = time.monotonic() + pause
        self._report(f"{service.name} ended with status {status}; restarting it in {pause} s (log: {service.log})")

    def _look_after(self, service: Service) -> None:
        if service.pid and not _alive(service.pid):
            # What a killed leader left behind keeps its ports, and its output open, so that no end would be seen.
            _signal_group(service.pid, signal.SIGKILL)
        if service.pid and service._keeper.exitcode:
            self._ended(service, service._keeper.exitcode)  # its keeper was killed, so no event will come
        if service._due and time.monotonic() >= service._due and not self._is_held(service.name):
            self._spawn(service)


def _signal_group(group: int, number: signal.Signals) -> None:
    if group > 0:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _alive(pid: int) -> bool:
    return start_ticks(pid) is not None


def _group_alive(group: int) -> bool:
    """Whether a process of the group runs; a zombie leader that nobody has reaped yet does not count."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return _alive(group) or not Path(f"/proc/{group}").exists()
