"""Faults injected into a real engine are named within three seconds, alone; a busy healthy engine is never faulted."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import eventually
from tests.integration.conftest import Engine, running_engine
from tests.integration.watcher import Found, Watcher

pytestmark = pytest.mark.long

LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True, "stream": True}
NAMED_SECONDS = 3.0


@contextmanager
def busy(engine: Engine, streams: int = 2) -> Iterator[None]:
    """Streams that go on until the end of the block; what happens to them is not this test's business."""
    with ThreadPoolExecutor(streams) as pool, httpx.Client(base_url=engine.url, timeout=5) as client:
        stopping = threading.Event()

        def read() -> None:
            try:
                with client.stream("POST", "/v1/completions", json=LONG) as response:
                    for _ in response.iter_lines():
                        if stopping.is_set():
                            return
            except httpx.HTTPError:
                return

        for _ in range(streams):
            pool.submit(read)
        core = engine.page("core")
        eventually("the batch", lambda: core["requests_running"] == streams)
        try:
            yield
        finally:
            stopping.set()
            client.close()


def stop(role: str) -> Callable[[Engine, Path], Callable[[], None]]:
    def inject(engine: Engine, _: Path) -> Callable[[], None]:
        pid = engine.page(role).header.pid
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)

    return inject


def trigger(name: str) -> Callable[[Engine, Path], Callable[[], None]]:
    def inject(_: Engine, faults: Path) -> Callable[[], None]:
        (faults / name).write_text("20")  # longer than any stall of the host
        return lambda: (faults / name).unlink(missing_ok=True)

    return inject


def kill_core(engine: Engine, _: Path) -> Callable[[], None]:
    os.kill(engine.page("core").header.pid, signal.SIGKILL)
    return lambda: None


CASES = [
    (stop("api"), ("process_frozen", "api")),
    (stop("core"), ("process_frozen", "core")),
    (kill_core, ("process_dead", "core")),
    (trigger("block_loop"), ("event_loop_blocked", "api")),
    (trigger("stall_core"), ("step_stalled", "core")),
    (trigger("input_thread"), ("input_thread_stuck", "core")),
    (trigger("output_thread"), ("output_thread_stuck", "core")),
    (trigger("receiver"), ("output_thread_stuck", "api")),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("inject", "expected"), CASES, ids=[f"{fault}-{process}" for _, (fault, process) in CASES])
def test_a_fault_is_named_within_seconds_and_alone(
    runtime_dir: Path,
    tmp_path: Path,
    inject: Callable[[Engine, Path], Callable[[], None]],
    expected: tuple[str, str],
) -> None:
    with running_engine(runtime_dir, ENGINESCOPE_FAULTS_DIR=str(tmp_path)) as engine:
        with Watcher(engine.port, engine.runtime_dir) as watcher, busy(engine):
            assert watcher.now() == set()
            started = time.monotonic()
            mend = inject(engine, tmp_path)
            try:
                send_one(engine, expected)
                others = wait_for(watcher, expected, started)
                seconds = time.monotonic() - started
            finally:
                mend()
        print(f"named {expected[0]} in {expected[1]} after {seconds:.2f} s")
        assert others == set(), "another judgement came before or with the right one"
        assert seconds < NAMED_SECONDS + watcher.blind_seconds(NAMED_SECONDS)


def send_one(engine: Engine, expected: tuple[str, str]) -> None:
    """A dead input thread shows only once somebody sends something."""
    if expected[0] == "input_thread_stuck":
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=0.3)


def wait_for(watcher: Watcher, expected: tuple[str, str], started: float) -> Found:
    others: Found = set()
    while time.monotonic() - started < 30:
        now = watcher.now()
        others |= now - {expected}
        if expected in now:
            return others
        time.sleep(0.02)
    pytest.fail(f"{expected} was never named; others: {others}")


def test_a_busy_healthy_engine_is_never_faulted(runtime_dir: Path) -> None:
    """Bursts, idleness, a long prefill, aborts, silent connections: the short form of an ordinary day."""
    with (
        running_engine(runtime_dir, "--max-num-batched-tokens=8192") as engine,
        Watcher(engine.port, engine.runtime_dir) as watcher,
    ):
        seen: Found = set()
        with ThreadPoolExecutor(16) as pool, engine.client() as client:

            def ask(number: int) -> int:
                body = {"prompt": "x" * (number % 50 + 1), "max_tokens": 20, "temperature": 0}
                return client.post("/v1/completions", json=body).status_code

            for _ in range(3):
                answers = [pool.submit(ask, number) for number in range(60)]
                while not all(answer.done() for answer in answers):
                    seen |= watcher.now()
                    time.sleep(0.05)
                assert {answer.result() for answer in answers} == {200}
            prefill = pool.submit(client.post, "/v1/completions", json={"prompt": "y" * 8000, "max_tokens": 2})
            with pytest.raises(httpx.TimeoutException):
                client.post("/v1/completions", json=LONG | {"stream": False}, timeout=0.2)
            assert prefill.result().status_code == 200
        idle_until = time.monotonic() + 4
        while time.monotonic() < idle_until:
            seen |= watcher.now()
            time.sleep(0.05)
    assert seen == set()
