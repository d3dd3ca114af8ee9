"""A running engine with the dummy model, and a real OTLP endpoint."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from enginescope.otlp_sink import SpanStore, serve
from telemetry.scoreboard import Reader, pages
from tests.conftest import eventually, free_port, running


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    port: int
    runtime_dir: Path
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, wanted: str) -> Reader:
        """The page of the living process with that role or name, such as ``core-1``."""
        return eventually(f"a live {wanted} page", lambda: self._live_page(wanted))

    def _live_page(self, wanted: str) -> Reader | None:
        for path in pages(self.runtime_dir):
            reader = Reader(path)
            if wanted in (reader.layout.role, reader.header.name) and reader.owner() is not None:
                return reader
            reader.close()
        return None

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)


@contextlib.contextmanager
def running_engine(runtime_dir: Path, *flags: str, **environment: str) -> Iterator[Engine]:
    """An engine that has answered /health with 200."""
    port = free_port()
    command = (sys.executable, "-m", "instrumented_engine", "--port", str(port), *flags)
    with running(*command, ENGINESCOPE_RUNTIME_DIR=str(runtime_dir), **environment) as process:
        engine = Engine(port, runtime_dir, process.pid)
        eventually("the engine", lambda: is_healthy(engine), 60)
        yield engine


def is_healthy(engine: Engine) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{engine.url}/health").status_code == 200
    return False


@contextlib.contextmanager
def running_sink() -> Iterator[tuple[ThreadingHTTPServer, SpanStore, int]]:
    """An OTLP/HTTP endpoint in this process."""
    store, port = SpanStore(10_000), free_port()
    server = serve("127.0.0.1", port, store)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server, store, port
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine shared by the tests of a module."""
    with running_engine(tmp_path_factory.mktemp("rt")) as started:
        yield started
