"""A Docker daemon for the tests: the one that runs here, or one of our own in a network namespace of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.compose.tools import ROOT, MissingError, environment, home, run

PROJECT: Final = "enginescope-test"
_READY_SECONDS: Final = 60
_ASK: Final = """\
import sys, urllib.request as u
url, body, *headers = sys.argv[1:]
request = u.Request(url, body.encode() or None, dict(header.split(": ", 1) for header in headers))
try:
    sys.stdout.buffer.write(u.urlopen(request, timeout=60).read())
except OSError as error:
    sys.exit(f"{url}: {error} {error.read().decode() if hasattr(error, 'read') else ''}")
"""


class NoDaemonError(Exception):
    """No daemon runs and none can be started; the message is one sentence."""


@dataclass
class Docker:
    """Commands for a running daemon."""

    enter: tuple[str, ...] = ()
    """What a program begins with that must reach the published ports."""
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, timeout: float = 900) -> str:
        """What a docker command prints."""
        return run("docker", *command, env=environment() | self.variables, timeout=timeout)

    def compose(self, *command: str, timeout: float = 900) -> str:
        """What a compose command prints, for compose.yaml with our override."""
        files = ("--file", "compose.yaml", "--file", "tests/compose/override.yaml")
        return self.run("compose", "--project-name", PROJECT, *files, "--profile", "load", *command, timeout=timeout)

    def inspect(self, service: str) -> dict[str, Any]:
        """Everything Docker knows about the container of a service, stopped ones too."""
        found: dict[str, Any] = json.loads(
            self.run("inspect", self.compose("ps", "--all", "--quiet", service).strip())
        )[0]
        return found

    def inside(self, service: str, *command: str) -> str:
        """What a program prints in the container of a service."""
        return self.compose("exec", "--no-TTY", service, *command, timeout=60)

    def ask(self, port: int, path: str, body: str = "", *headers: str) -> bytes:
        """The answer of a published port.

        Raises:
            ConnectionError: no answer, or not 200.
        """
        command = [*self.enter, sys.executable, "-c", _ASK, f"http://127.0.0.1:{port}{path}", body, *headers]
        done = subprocess.run(command, capture_output=True, timeout=90, check=False)
        if done.returncode:
            raise ConnectionError(done.stderr.decode().strip())
        return done.stdout


@contextlib.contextmanager
def docker() -> Iterator[Docker]:
    """The daemon that runs, or one that is started and stopped.

    Raises:
        NoDaemonError: there is none, and this machine cannot have one.
    """
    with contextlib.suppress(MissingError):
        run("docker", "version", "--format", "{{.Server.Version}}", timeout=20)
        yield Docker()
        return
    if os.geteuid() != 0:
        raise NoDaemonError("no Docker daemon answers, and only root can start one")
    with _namespace() as namespace, _own_daemon(namespace) as socket:
        ours = Docker(("nsenter", f"--net=/run/netns/{namespace}"), {"DOCKER_HOST": f"unix://{socket}"})
        yield ours
        # What the next time does not need: images that were built anew, and layers above what two builds take.
        ours.run("image", "prune", "--force")
        ours.run("builder", "prune", "--force", "--keep-storage", "4GB")


@contextlib.contextmanager
def _namespace() -> Iterator[str]:
    """A network namespace, so that bridges and packet filters of the host stay as they are."""
    name = f"enginescope-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
    except MissingError as error:
        raise NoDaemonError(f"no network namespace can be made: {error}") from error
    try:
        _raise_loopback(name)
        yield name
    finally:
        run("ip", "netns", "del", name)


def _raise_loopback(namespace: str) -> None:
    try:
        run("ip", "-n", namespace, "link", "set", "lo", "up")
    except MissingError as error:
        raise NoDaemonError(f"no network namespace can be used: {error}") from error


@contextlib.contextmanager
def _own_daemon(namespace: str) -> Iterator[Path]:
    """dockerd with all that is its own apart; images stay in our folder for the next time."""
    home().mkdir(parents=True, exist_ok=True)
    short = Path(tempfile.mkdtemp(prefix="es-docker-"))  # socket paths have 107 bytes
    socket, log = short / "docker.sock", home() / "dockerd.log"
    folders = (f"--data-root={home() / 'data'}", f"--exec-root={short / 'exec'}", f"--pidfile={short / 'docker.pid'}")
    # nsenter and not `ip netns exec`, which mounts another /sys and hides the control groups.
    command = ["nsenter", f"--net=/run/netns/{namespace}", "dockerd", f"--host=unix://{socket}", *folders]
    with log.open("w") as output:
        daemon = subprocess.Popen(command, env=environment(), stdout=output, stderr=output, cwd=ROOT)
    try:
        _wait(daemon, socket, log)
        yield socket
    finally:
        daemon.terminate()
        daemon.wait(60)
        shutil.rmtree(short, ignore_errors=True)


def _wait(daemon: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    variables = environment() | {"DOCKER_HOST": f"unix://{socket}"}
    while True:
        with contextlib.suppress(MissingError):
            run("docker", "version", "--format", "{{.Server.Version}}", env=variables, timeout=20)
            return
        if daemon.poll() is not None or time.monotonic() > deadline:
            said = log.read_text().splitlines()
            raise NoDaemonError(f"dockerd does not start on this kernel: {said[-1] if said else 'it says nothing'}")
        time.sleep(0.2)
