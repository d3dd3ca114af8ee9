"""A probe counts what nobody answered, after the first answer."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sidecar import probe as module
from sidecar.probe import Probe, parse_probe
from tests.conftest import eventually, free_port


class Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(503)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.5)


@pytest.mark.parametrize(
    ("url", "parsed"),
    [("http://[::1]:80/x/y", ("::1", 80, "/x/y")), ("http://localhost:8000", ("localhost", 8000, "/"))],
)
def test_urls(url: str, parsed: tuple[str, int, str]) -> None:
    assert parse_probe(url) == parsed


@pytest.mark.parametrize("url", ["", "x", "https://a:1/", "http://a/", "http://:80/", "http://a:x/", "http://a:70000/"])
def test_bad_urls_get_one_sentence(url: str) -> None:
    with pytest.raises(ValueError, match="--probe takes http://HOST:PORT/PATH"):
        parse_probe(url)


def test_any_answer_counts_and_failures_only_after_the_first() -> None:
    port = free_port()
    probe = Probe(f"http://127.0.0.1:{port}/")
    probe.start()
    try:
        with socket.socket() as silent:  # bound and not listening: refused
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            silent.bind(("127.0.0.1", port))
            threading.Event().wait(0.5)
            assert probe.failures is None
        server = HTTPServer(("127.0.0.1", port), Refuses)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            eventually("an answer", lambda: probe.failures == 0)
        finally:
            server.shutdown()
            thread.join()
        eventually("failures in a row", lambda: (probe.failures or 0) >= 2)
        server.server_close()
    finally:
        probe.stop()
        probe.join(5)
