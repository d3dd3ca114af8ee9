"""Small real processes that stand in for those of a stack, and what the kernel says about them."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.conftest import eventually

HOST = "127.0.0.1"


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, killed on exit."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate(timeout=10)


@contextmanager
def api(source: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program that owns an API page in the folder and prints the port where it listens; the process and that port."""
    with process(sys.executable, "-c", source, str(folder)) as started:
        assert started.stdout is not None
        yield started, int(started.stdout.readline())


@contextmanager
def serving(answer: Callable[[str], str]) -> Iterator[int]:
    """An HTTP server that answers each path with a text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def until(condition: Callable[[], object]) -> None:
    eventually("the condition holds", condition)


def rows(port: int) -> list[list[str]]:
    """The rows of /proc/net/tcp with that local port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [row for row in map(str.split, lines) if row[1].endswith(f":{port:04X}")]


def depth(port: int) -> int:
    """Connections in the accept queue."""
    listening = [row for row in rows(port) if row[3] == "0A"]
    return sum(int(row[4].partition(":")[2], 16) for row in listening)


def connected(port: int, state_code: str = "01") -> int:
    """Connections in a state, established if none is named."""
    return sum(row[3] == state_code for row in rows(port))


def overflows() -> int:
    names, values = [
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    ]
    return int(values[names.index("ListenOverflows")])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def soft_limit(pid: int) -> int:
    """Of open files."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
