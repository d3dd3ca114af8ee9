"""``/metrics``, ``/healthz`` and ``/readyz``: served from the last snapshot, by a bounded number of threads.

A scrape never starts a collection, and is not compressed, which would take longer than to write it. A slow or silent
client costs one thread for a bounded time, and the oldest connection goes when all are taken, so that stuck clients
cannot keep Prometheus out.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

MAX_CONNECTIONS: Final = 8
_CLIENT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1
Answer = Callable[[str], tuple[bytes, str]]


class ListenError(Exception):
    """The address cannot be listened on; the message is one sentence."""


class MetricsServer(socketserver.TCPServer):
    """The HTTP server; ``serve_forever`` in a thread, then ``shutdown`` and ``server_close``."""

    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, answer: Answer, ready: Callable[[], bool]) -> None:
        """Listen.

        Args:
            host: an address of this machine.
            port: 0 for any free one.
            answer: value of the ``Accept`` header -> body and content type of the metrics.
            ready: whether the samples are fresh.

        Raises:
            ListenError: the address is taken or not ours.
        """
        self.answer = answer
        self.ready = ready
        self._connections: dict[socket.socket, float] = {}
        """Connection -> when its time is up; the oldest first."""
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error

    @property
    def port(self) -> int:
        """The port listened on, also when 0 was asked for."""
        return int(self.server_address[1])

    def get_request(self) -> Any:
        """Accept, and pause after a failure: out of descriptors, the loop would spin on a socket that stays ready."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; with all of them taken, the oldest connection makes room."""
        with self._lock:
            while len(self._connections) >= MAX_CONNECTIONS:
                self._drop(next(iter(self._connections)))
            self._connections[request] = time.monotonic() + _CLIENT_SECONDS
        threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _drop(self, connection: socket.socket) -> None:
        self._connections.pop(connection, None)
        try:
            connection.shutdown(socket.SHUT_RDWR)  # ends a recv or send that its thread sits in
        except OSError:
            return

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):  # the client went away, or sent what no HTTP parser takes
            return
        finally:
            with self._lock:
                self._connections.pop(request, None)
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Drop the connections whose time is up; called after every turn of the loop."""
        now = time.monotonic()
        with self._lock:
            for request in [one for one, end in self._connections.items() if now >= end]:
                self._drop(request)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _CLIENT_SECONDS
    server_version = "enginescope"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request; the connection closes after it."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._reply(HTTPStatus.OK, *self.server.answer(self.headers.get("Accept", "")))
        elif path == "/healthz":
            self._reply(HTTPStatus.OK, b"ok\n")
        elif path == "/readyz":
            ready = self.server.ready()
            self._reply(
                *((HTTPStatus.OK, b"ok\n") if ready else (HTTPStatus.SERVICE_UNAVAILABLE, b"no fresh sample\n"))
            )
        else:
            self._reply(HTTPStatus.NOT_FOUND, b"/metrics /healthz /readyz\n")

    def do_HEAD(self) -> None:
        """The same without the body."""
        self.do_GET()

    def _reply(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing: a scrape is no event."""
