"""Fixtures that start real processes and end them, by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

# The host can stall for seconds: how long an example takes says nothing about the code.
settings.register_profile("shared-host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-host")

T = TypeVar("T")


def free_port() -> int:
    """A TCP port nobody uses right now, below the ephemeral range so that no connection takes it meanwhile."""
    for port in range(20000 + os.getpid() * 7 % 10000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _handed_out:
                _handed_out.add(port)
                return port
    raise RuntimeError("no free port")


_handed_out: set[int] = set()


def eventually(what: str, probe: Callable[[], T | None], seconds: float = 30) -> T:
    """The first true result of ``probe``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        result = probe()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own; the whole group is gone afterwards."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=log, stderr=log, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
            log.seek(0)
            sys.stderr.write(log.read())


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory with a short path: unix socket paths have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="es-") as folder:
        monkeypatch.setenv("ENGINESCOPE_RUNTIME_DIR", folder)
        yield Path(folder)
