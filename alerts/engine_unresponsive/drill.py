"""Puts a server without pages in the engine's place, and blocks it with a client that connects and sends nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from alerts.inside import SHORT, judged, number, send_request, wait_until
from enginescope.drill import signal_group, wait_healthy
from enginescope.probe import is_ready
from enginescope.stack import TRAFFIC, Stack

MAY_ALSO_PAGE: Final = {
    "EngineDown": "the engine makes room for another server and comes back afterwards",
    "RestartLoop": "drills one after the other, on faster rules, restart it as often as a loop does",
}
_CLIENTS: Final = 3
# One request after the other, as a single-threaded server does; reading the first one never ends.
_SERVER: Final = """
import http.server, sys

class Server(http.server.HTTPServer):
    request_queue_size = 128

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass

Server(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Block it; on exit give the engine its place back and wait until that serves."""
    port = stack.ports["engine"]
    with stack.held(TRAFFIC):
        with stack.held("engine"), ExitStack() as clients:
            signal_group(stack, "engine", signal.SIGTERM)
            wait_until(lambda: not _listens(port), "the engine did not end")
            clients.enter_context(_server(port))
            _wait_until_seen(stack)
            stamp = time.time_ns()
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(_CLIENTS):
                clients.enter_context(send_request(port, SHORT))
            yield stamp
        wait_healthy(stack)


def evidence(stack: Stack) -> bool:
    """The judge says so."""
    return judged(stack, "engine_unresponsive")


@contextmanager
def _server(port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _wait_until_seen(stack: Stack) -> None:
    """Ask it for something until the judge looks at it and has seen it close connections.

    Twice, because what was closed when it began to look counts for nothing.
    """

    def closed() -> float:
        is_ready(stack.ports["engine"], "/")
        return number(stack, "connections", port=str(stack.ports["engine"]), state="time_wait") or 0

    wait_until(lambda: number(stack, "fault", fault="engine_unresponsive") is not None, "the judge did not look at it")
    for _ in range(2):
        before = closed()
        wait_until(lambda before=before: closed() > before, "the sidecar did not see the server answer")  # type: ignore[misc]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True
