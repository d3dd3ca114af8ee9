"""Faults injected into a real engine are named within three seconds, alone; a busy healthy engine is never faulted."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
def busy(engine: Engine, cores: Sequence[str]) -> Iterator[None]:
    """Two streams for each core that go on until the end of the block; what becomes of them is not tested here."""
    streams = 2 * len(cores)
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
        pages = [engine.page(core) for core in cores]
        eventually("the batches", lambda: {page["requests_running"] for page in pages} == {2})
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


def kill(name: str) -> Callable[[Engine, Path], Callable[[], None]]:
    def inject(engine: Engine, _: Path) -> Callable[[], None]:
        os.kill(engine.page(name).header.pid, signal.SIGKILL)
        return lambda: None

    return inject


CASES = [
    (stop("api"), ("process_frozen", "api")),
    (stop("core"), ("process_frozen", "core")),
    (kill("core"), ("process_dead", "core")),
    (trigger("block_loop"), ("event_loop_blocked", "api")),
    (trigger("stall_core"), ("step_stalled", "core")),
    (trigger("input_thread"), ("input_thread_stuck", "core")),
    (trigger("output_thread"), ("output_thread_stuck", "core")),
    (trigger("receiver"), ("output_thread_stuck", "api")),
]
OF_TWO = [
    (stop("core-1"), ("process_frozen", "core-1")),
    (kill("core-1"), ("process_dead", "core-1")),
    (trigger("stall_core@core-1"), ("step_stalled", "core-1")),
    (trigger("input_thread@core-1"), ("input_thread_stuck", "core-1")),
    (trigger("output_thread@core-1"), ("output_thread_stuck", "core-1")),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("inject", "expected"), CASES + OF_TWO, ids=[f"{fault}-{process}" for _, (fault, process) in CASES + OF_TWO]
)
def test_a_fault_is_named_within_seconds_and_alone(
    runtime_dir: Path,
    tmp_path: Path,
    inject: Callable[[Engine, Path], Callable[[], None]],
    expected: tuple[str, str],
) -> None:
    cores = ("core-0", "core-1") if expected[1] == "core-1" else ("core",)
    flags = (f"--data-parallel-size={len(cores)}", "--threads=1")
    with running_engine(runtime_dir, *flags, ENGINESCOPE_FAULTS_DIR=str(tmp_path)) as engine:
        eventually("all cores", lambda: httpx.get(f"{engine.url}/health").json() == {"status": "ok"})
        with Watcher(engine.port, engine.runtime_dir, 1 + len(cores)) as watcher, busy(engine, cores):
            assert watcher.now() == set()
            started = time.monotonic()
            mend = inject(engine, tmp_path)
            try:
                if expected[0] == "input_thread_stuck":
                    started = send_until_it_dies(engine, tmp_path)
                eventually(f"{expected} to be named", lambda: expected in named(watcher))
                seconds = time.monotonic() - started
            finally:
                mend()
        print(f"named {expected[0]} in {expected[1]} after {seconds:.2f} s")
        assert named(watcher) == {expected}, "another judgement came before or with the right one"
        assert seconds < NAMED_SECONDS + watcher.blind_seconds(NAMED_SECONDS)


def named(watcher: Watcher) -> Found:
    """Everything that was judged so far."""
    return {(fault.fault, fault.process) for _, fault in watcher.found}


def send_until_it_dies(engine: Engine, faults: Path) -> float:
    """An input thread meets its fault at its next message; the prompt says which of two equal cores gets it.

    Gives the time before the message that it met.
    """
    for number in range(50):
        started = time.monotonic()
        with suppress(httpx.TimeoutException):
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": f"{number}", "max_tokens": 1}, timeout=0.3)
        if not any(faults.iterdir()):
            return started
    pytest.fail("no message came to the input thread")


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
