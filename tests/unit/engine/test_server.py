"""The drain: when it begins, when it is over, what a second signal does."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import uvicorn

from instrumented_engine.api.admission import Gate
from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.errors import ApiError
from instrumented_engine.api.server import EngineServer
from instrumented_engine.config import EngineSettings
from telemetry.layout import API, GATE_DRAINING, GATE_OPEN
from telemetry.scoreboard import Writer


class Client:
    def __init__(self) -> None:
        self.failed: list[str] = []

    def fail_all(self, error: Callable[[], ApiError]) -> None:
        self.failed.append(error().message)


class Bench:
    def __init__(self, page: Writer, drain_timeout: float) -> None:
        self.page, self.client = page, Client()
        settings = EngineSettings(drain_timeout=drain_timeout)
        config = uvicorn.Config(app="none:none", log_config=None)
        self.server = EngineServer(config, settings, Gate(page), cast("CoreClient", self.client), page)

    def leaves(self) -> bool:
        return asyncio.run(self.server.on_tick(1))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path, API)
    yield writer
    writer.close()


def test_an_idle_server_leaves_at_once(page: Writer) -> None:
    bench = Bench(page, 600)
    assert not bench.leaves()
    assert page["gate"] == GATE_OPEN
    bench.server.handle_exit(signal.SIGTERM, None)
    assert page["gate"] == GATE_DRAINING
    assert bench.leaves()
    assert bench.client.failed == []


def test_open_requests_are_waited_for(page: Writer) -> None:
    bench = Bench(page, 600)
    page["requests_inflight"] = 1
    bench.server.handle_exit(signal.SIGTERM, None)
    assert not bench.leaves()
    page["requests_inflight"] = 0
    assert bench.leaves()


def test_after_the_limit_they_are_told(page: Writer) -> None:
    bench = Bench(page, 0)
    page["requests_inflight"] = 1
    bench.server.handle_exit(signal.SIGTERM, None)
    assert bench.leaves()
    assert bench.client.failed == ["the engine is shutting down"]


def test_ctrl_c_under_the_launcher_is_one_wish_and_a_second_sigterm_is_another(page: Writer) -> None:
    bench = Bench(page, 600)
    page["requests_inflight"] = 1
    bench.server.handle_exit(signal.SIGINT, None)
    bench.server.handle_exit(signal.SIGTERM, None)
    assert not bench.leaves()
    bench.server.handle_exit(signal.SIGTERM, None)
    assert bench.leaves()
    assert bench.client.failed == ["the engine is shutting down"]
