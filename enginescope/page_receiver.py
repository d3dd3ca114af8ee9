"""Receives what Alertmanager sends and keeps the last pages, for people, drills and tests.

    POST /webhook            Alertmanager's webhook, version 4: each alert of the group becomes a page
    POST /deadman            the same for Watchdog: a sign of life, no page
    GET  /pages?since=ID     JSON list of the pages after that id, oldest first
    GET  /healthz            counts, and when the last Watchdog was heard

Every well-formed message is answered with 200, whatever optional fields it lacks: Alertmanager sends again what was
not. A repeat of the newest page of an alert is counted and not kept.

When no Watchdog is heard for ``--deadman-timeout`` seconds, the receiver itself pages that alerts do not arrive.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from enginescope.pages import Message, Notice, Page, PageStore, Status, WebhookError, format_page, parse_webhook
from telemetry.settings import SettingsError, parse, setting

__all__ = ["Page", "PageReceiver", "PageReceiverSettings", "format_page", "main"]

_BODY_LIMIT: Final = 1 << 20
_WATCHDOG: Final = "Watchdog"


@dataclass(frozen=True, slots=True)
class PageReceiverSettings:
    """Receive pages from Alertmanager and keep the last ones."""

    listen: str = setting("address to listen on", "127.0.0.1:9095", "HOST:PORT")
    deadman_timeout: float = setting("page when no Watchdog was heard for so long", 300.0, "SECONDS")

    def __post_init__(self) -> None:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"--listen takes HOST:PORT, not {self.listen!r}")
        if not self.deadman_timeout > 0:
            raise ValueError("--deadman-timeout must be above 0")

    @property
    def address(self) -> tuple[str, int]:
        """What ``--listen`` says, for a socket."""
        host, _, port = self.listen.rpartition(":")
        return host, int(port)


class DeadMan:
    """Knows when the last Watchdog came, and tells silence and its end once each."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._count = 0
        self._silent_since = ""
        self._runbook: dict[str, str] = {}
        # Silence counts from the start, so that a receiver nobody ever talks to is noticed too.
        self._last = time.monotonic()
        self._last_ns = time.time_ns()

    def hear(self, notices: Iterable[Notice]) -> Notice | None:
        """Take the signs of life in a message; the end of a silence is a notice to page."""
        with self._lock:
            for notice in notices:
                # A Watchdog that resolved is no sign of life: Alertmanager no longer hears Prometheus.
                if notice.status == "firing" and notice.labels.get("alertname") == _WATCHDOG:
                    self._count += 1
                    self._last, self._last_ns = time.monotonic(), time.time_ns()
                    url = (notice.annotations or {}).get("runbook_url")
                    self._runbook = {"runbook_url": url} if url else {}
            if not self._silent_since or self._age() > self.timeout:
                return None
            since, self._silent_since = self._silent_since, ""
            return self._notice("resolved", since, "Watchdog is heard again: alerts are delivered.")

    def check(self) -> Notice | None:
        """The notice to page when a silence has become too long."""
        with self._lock:
            if self._silent_since or self._age() <= self.timeout:
                return None
            self._silent_since = datetime.fromtimestamp(self._last_ns / 1e9, UTC).isoformat()
            return self._notice(
                "firing",
                self._silent_since,
                f"No Watchdog heard for {self._age():.0f} s: Prometheus or Alertmanager delivers no alerts to anybody.",
            )

    def state(self) -> dict[str, Any]:
        """For ``/healthz``; the age counts from the start when none was heard."""
        with self._lock:
            return {
                "count": self._count,
                "last_seen_ns": self._last_ns if self._count else None,
                "age_seconds": round(self._age(), 3),
                "timeout_seconds": self.timeout,
                "silent": bool(self._silent_since),
            }

    def _age(self) -> float:
        return time.monotonic() - self._last

    def _notice(self, status: Status, since: str, summary: str) -> Notice:
        description = "Check Prometheus, then its way to Alertmanager, then Alertmanager's way here."
        return Notice(
            status=status,
            labels={"alertname": _WATCHDOG, "severity": "critical"},
            annotations={"summary": summary, "description": description, **self._runbook},
            starts_at=since,
        )


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


class PageReceiver:
    """The HTTP server with its store; ``with PageReceiver(...) as receiver`` runs it in threads."""

    def __init__(self, settings: PageReceiverSettings, on_page: Callable[[Page], None] | None = None) -> None:
        """Bind the address.

        Raises:
            OSError: the address is taken or not ours.
        """
        self.store = PageStore()
        self.deadman = DeadMan(settings.deadman_timeout)
        self._on_page = on_page
        self._rejected = 0
        self._closing = threading.Event()
        self._server = _Server(settings.address, self._handler)
        self.port: int = self._server.server_address[1]
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), name="page-receiver"),
            threading.Thread(target=self._watch, name="dead-man"),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()

    def take(self, path: str, message: Message) -> None:
        """Store what came to ``/webhook`` or ``/deadman``."""
        if path == "/deadman":
            self._page("deadman", self.deadman.hear(message.alerts))
            return
        for notice in message.alerts:
            self._page(message.receiver, notice)

    def reject(self) -> None:
        """Count a message that was refused."""
        self._rejected += 1

    def health(self) -> dict[str, Any]:
        """What ``/healthz`` says."""
        return {"status": "ok", **self.store.counts(), "rejected": self._rejected, "deadman": self.deadman.state()}

    def _handler(self, *arguments: Any) -> BaseHTTPRequestHandler:
        return _Handler(self, *arguments)

    def _watch(self) -> None:
        while not self._closing.wait(min(self.deadman.timeout / 20, 1.0)):
            self._page("deadman", self.deadman.check())

    def _page(self, receiver: str, notice: Notice | None) -> None:
        page = self.store.add(receiver, notice) if notice else None
        if page and self._on_page:
            self._on_page(page)


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one segment, or the client's delayed ACK costs 40 ms

    def __init__(self, receiver: PageReceiver, *arguments: Any) -> None:
        self._receiver = receiver
        super().__init__(*arguments)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/healthz":
            self._answer(200, self._receiver.health())
        elif url.path == "/pages":
            since = parse_qs(url.query).get("since", ["0"])[-1]
            if since.isascii() and since.isdigit():
                self._answer(200, self._receiver.store.since(int(since)))
            else:
                self._answer(400, {"error": f"since takes the id of a page, not {since!r}"})
        else:
            self._answer(404, {"error": "there are GET /pages and /healthz, POST /webhook and /deadman"})

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        if path not in ("/webhook", "/deadman"):
            self._refuse(404, "there are GET /pages and /healthz, POST /webhook and /deadman")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(411, "a message needs a Content-Length")
        elif int(length) > _BODY_LIMIT:
            self._refuse(413, f"a message may have {_BODY_LIMIT} bytes, not {length}")
        else:
            self._take(path, self.rfile.read(int(length)))

    def _take(self, path: str, body: bytes) -> None:
        try:
            message = parse_webhook(body)
        except WebhookError as error:
            self._refuse(400, str(error))
            return
        self._receiver.take(path, message)
        self._answer(200, {"alerts": len(message.alerts)})

    def _refuse(self, status: int, sentence: str) -> None:
        self._receiver.reject()
        self.close_connection = True  # part of the body may still be on its way
        self._answer(status, {"error": sentence})

    def _answer(self, status: int, content: Any) -> None:
        body = msgspec.json.encode(content)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Say nothing: pages are printed, requests are counted."""


def _print(page: Page) -> None:
    with contextlib.suppress(OSError):  # whoever read our output is gone; pages are still served
        print(format_page(page), flush=True)


def main() -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit status."""
    program = "enginescope.page_receiver"
    try:
        # No environment variables: ENGINESCOPE_LISTEN would be every process's.
        settings = parse(PageReceiverSettings, program, sys.argv[1:], {})
        receiver = PageReceiver(settings, _print)
    except SettingsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{program}: cannot listen on {settings.listen}: {error.strerror}", file=sys.stderr)
        return 2
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with receiver:
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
