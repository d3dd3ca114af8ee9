"""Three minutes of all that a healthy engine meets, and not one judgement; each ingredient is told by a metric."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import eventually, free_port, running
from tests.integration.conftest import Engine, is_healthy
from tests.integration.load import outcomes, storm
from tests.integration.watcher import Watcher

pytestmark = pytest.mark.long

SECONDS = 185.0
QUICK = {"prompt": "hello", "temperature": 0, "max_tokens": 12}
LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True, "stream": True}
FLAGS = ("--max-num-batched-tokens=8192", "--drain-timeout=30")


class Day:
    """One engine on one port, its watcher, and what clients do to it."""

    def __init__(self, engine: Engine, watcher: Watcher, pool: ThreadPoolExecutor) -> None:
        self.engine = engine
        self.watcher = watcher
        self._pool = pool

    def rises(self, by: float, name: str, **labels: str) -> Callable[[], None]:
        """A wait until this counter has risen by so much since now."""
        before = self.watcher.metric(name, **labels) or 0.0

        def wait() -> None:
            risen = f"{name}{labels} to rise by {by:g}"
            self.watcher.wait_for(lambda: (self.watcher.metric(name, **labels) or 0.0) >= before + by, risen)

        return wait

    def reads(self, value: float, name: str, **labels: str) -> None:
        """Wait until this gauge is at least so high."""
        reached = f"{name}{labels} to reach {value:g}"
        self.watcher.wait_for(lambda: (self.watcher.metric(name, **labels) or 0.0) >= value, reached)

    def ask(self, **body: Any) -> Future[httpx.Response]:
        return self._pool.submit(httpx.post, f"{self.engine.url}/v1/completions", json=QUICK | body, timeout=120)

    def burst(self, requests: int) -> None:
        rises = self.rises(requests, "requests_total", outcome="ok")
        answers = [self.ask(max_tokens=random.randint(1, 40)) for _ in range(requests)]
        assert {answer.result().status_code for answer in answers} == {200}
        rises()

    def storm_of_400(self) -> None:
        rises = self.rises(400, "requests_received_total")
        answers = asyncio.run(storm(self.engine.port, [QUICK] * 400))
        assert outcomes(answers) == {"ok": 400}
        rises()

    def long_prefill(self) -> None:
        rises = self.rises(8000, "tokens_total", kind="prompt")
        started = time.monotonic()
        assert self.ask(prompt=random.randbytes(4000).hex(), max_tokens=2).result().status_code == 200
        print(f"a prefill of 8,000 tokens took {time.monotonic() - started:.1f} s")
        rises()

    def idle(self, seconds: float) -> None:
        self.watcher.wait_for(lambda: self.watcher.metric("requests_inflight") == 0, "rest")
        steps = self.watcher.metric("steps_total")
        time.sleep(seconds)
        assert self.watcher.metric("steps_total") == steps
        assert self.watcher.metric("core_phase", state="idle") == 1

    @contextlib.contextmanager
    def silent_connections(self, count: int) -> Iterator[None]:
        """They connect and say nothing; another dozen has been answered and is kept open."""
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection(("127.0.0.1", self.engine.port)))
                client = stack.enter_context(self.engine.client())
                assert client.get("/live").status_code == 200
            self.reads(2 * count, "connections", port=str(self.engine.port), role="http", state="established")
            yield

    @contextlib.contextmanager
    def streams(self, count: int) -> Iterator[list[httpx.Response]]:
        """Streams that go on for the block, each with its first event read."""
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(self.engine.client())
            opened = [stack.enter_context(client.stream("POST", "/v1/completions", json=LONG)) for _ in range(count)]
            self.reads(count, "requests_inflight_at", kind="streaming")
            yield opened

    def aborts(self, count: int) -> None:
        rises = [
            self.rises(count, "client_disconnects_total"),
            self.rises(count, "core_requests_ended_total", outcome="aborted"),
        ]
        with self.streams(count // 2):
            self.reads(1, "oldest_age_seconds", kind="streaming")
        for _ in range(count - count // 2):
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{self.engine.url}/v1/completions", json=LONG | {"stream": False}, timeout=0.5)
        for rise in rises:
            rise()

    def reload(self) -> None:
        rises = self.rises(1, "process_restarts_total", process="core")
        shed = self.rises(1, "requests_shed_total", reason="reloading")
        os.kill(self.engine.pid, signal.SIGHUP)
        self.reads(1, "admission_gate", state="reloading")
        assert self.ask().result().status_code == 503
        shed()
        rises()
        self.reads(1, "admission_gate", state="open")

    def drain(self, process: subprocess.Popen[str]) -> None:
        """SIGTERM while a request is computed: it is finished, others are refused, and then nobody is there."""
        # A reload leaves a new core, whose page the sidecar may not have yet; long answers last until it has. All four
        # fit into the KV cache, so that none waits for another's end.
        inside = [self.ask(max_tokens=4000, ignore_eos=True) for _ in range(4)]
        self.reads(1, "requests_running")
        os.kill(process.pid, signal.SIGTERM)
        self.reads(1, "admission_gate", state="draining")
        assert {answer.result().status_code for answer in inside} == {200}
        assert process.wait(60) == 0
        self.watcher.wait_for(lambda: self.watcher.metric("engine_up") == 0, "the end of the engine")


@contextlib.contextmanager
def engine_on(port: int, runtime_dir: Path) -> Iterator[tuple[Engine, subprocess.Popen[str]]]:
    command = (sys.executable, "-m", "instrumented_engine", "--port", str(port), *FLAGS)
    with running(*command, ENGINESCOPE_RUNTIME_DIR=str(runtime_dir)) as process:
        engine = Engine(port, runtime_dir, process.pid)
        eventually("the engine", lambda: is_healthy(engine), 60)
        yield engine, process


def first_half(day: Day) -> None:
    for _ in range(3):
        day.burst(60)
    day.long_prefill()
    day.idle(20)
    day.storm_of_400()
    with day.silent_connections(10):
        day.burst(24)
        with day.streams(4):
            day.long_prefill()
        day.idle(12)
    day.aborts(12)
    day.reload()
    day.burst(60)


def test_a_healthy_day_has_no_judgement(runtime_dir: Path) -> None:
    port, started = free_port(), time.monotonic()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(64))
        with engine_on(port, runtime_dir) as (engine, process):
            watcher = stack.enter_context(Watcher(port, runtime_dir))
            day = Day(engine, watcher, pool)
            first_half(day)
            day.drain(process)
        starts = day.rises(1, "process_starts_total", process="api")
        with engine_on(port, runtime_dir) as (engine, _):
            day.engine = engine
            starts()
            while time.monotonic() - started < SECONDS:
                day.burst(random.randint(1, 60))
                time.sleep(random.uniform(0, 3))
            watched, blind = time.monotonic() - started, watcher.blind_seconds()
            longest = max(watcher.sampler._gaps)
        print(f"watched {watched:.0f} s, blind for {blind:.1f} s of them, longest gap {longest:.2f} s")
        assert [(f"{after:.1f} s", fault) for after, fault in watcher.found] == []
        assert blind < watched / 3, "too little was seen to say anything"
