"""How the engine begins, reloads and ends, and whether it says honestly how it is."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from telemetry.scoreboard import Liveness, Reader
from tests.conftest import eventually, free_port, running
from tests.integration.conftest import Engine, running_engine
from tests.unit.model.test_model_gguf import tensors, write

LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 4}
CERTIFICATES = Path(__file__).resolve().parents[1] / "fixtures" / "tls"


def ask(engine: Engine, **body: object) -> httpx.Response:
    with engine.client() as client:
        return client.post("/v1/completions", json=SHORT | body)


def problem(engine: Engine) -> str | None:
    """Why /health fails; None while it does not. /live must answer all the time."""
    assert httpx.get(f"{engine.url}/live", timeout=20).status_code == 200
    answer = httpx.get(f"{engine.url}/health", timeout=20)
    return None if answer.status_code == 200 else str(answer.json()["error"]["message"])


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def start_long(engine: Engine, pool: ThreadPoolExecutor, **body: object) -> Future[httpx.Response]:
    """A request that is being computed."""
    core = engine.page("core")
    answer = pool.submit(ask, engine, **LONG | body)
    eventually("the request to run", lambda: core["requests_running"] == 1)
    return answer


def test_sigterm_finishes_open_requests_and_refuses_new_ones(runtime_dir: Path, pool: ThreadPoolExecutor) -> None:
    with running_engine(runtime_dir, "--threads=1", "--drain-timeout=60") as engine:
        pages = [engine.page(role) for role in ("api", "core")]
        api = pages[0]
        inside = start_long(engine, pool, max_tokens=2000)
        os.kill(engine.pid, signal.SIGTERM)
        eventually("the drain", lambda: api["gate"] == 2)
        refused = ask(engine)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert "shutting down" in refused.json()["error"]["message"]
        assert problem(engine) == refused.json()["error"]["message"]
        assert inside.result(60).json()["usage"]["completion_tokens"] == 2000
        eventually("the end", lambda: is_gone(engine.pid))
        assert api["shed_draining"] == 1
        assert [page.liveness() for page in pages] == [Liveness.EXITED] * 2
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", engine.port)) != 0


def test_a_drain_has_an_end_and_says_so(runtime_dir: Path, pool: ThreadPoolExecutor) -> None:
    with running_engine(runtime_dir, "--threads=1", "--drain-timeout=0.3") as engine, engine.client() as client:
        plain = start_long(engine, pool)
        with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(engine.pid, signal.SIGTERM)
            *_, last = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == 503
        answer = plain.result(20)
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the engine is shutting down")
        eventually("the end", lambda: is_gone(engine.pid), 10)


def stalled(engine: Engine, faults: Path, pool: ThreadPoolExecutor, seconds: int) -> Future[httpx.Response]:
    """A request in a step that takes so long."""
    (faults / "stall_core").write_text(str(seconds))
    answer = pool.submit(ask, engine)
    eventually("the step", lambda: not (faults / "stall_core").exists())
    return answer


def test_a_core_in_a_long_step_is_waited_for(runtime_dir: Path, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """The drain ends before the step does, and the core still leaves by itself."""
    faults = {"ENGINESCOPE_FAULTS_DIR": str(tmp_path)}
    with running_engine(runtime_dir, "--threads=1", "--drain-timeout=6", **faults) as engine:
        pages = [engine.page(role) for role in ("api", "core")]
        answer = stalled(engine, tmp_path, pool, 10)
        os.kill(engine.pid, signal.SIGTERM)
        assert answer.result(20).status_code == 503
        eventually("the end", lambda: is_gone(engine.pid))
        assert [page.liveness() for page in pages] == [Liveness.EXITED] * 2


def test_a_second_sigterm_waits_for_nothing(runtime_dir: Path, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    faults = {"ENGINESCOPE_FAULTS_DIR": str(tmp_path)}
    with running_engine(runtime_dir, "--threads=1", "--drain-timeout=300", **faults) as engine:
        api, core = (engine.page(role) for role in ("api", "core"))
        answer = stalled(engine, tmp_path, pool, 300)
        os.kill(engine.pid, signal.SIGTERM)
        eventually("the drain", lambda: api["gate"] == 2)
        os.kill(engine.pid, signal.SIGTERM)
        assert answer.result(30).status_code == 503
        eventually("the end", lambda: is_gone(engine.pid))
        assert (api.liveness(), core.liveness()) == (Liveness.EXITED, Liveness.DEAD)


@pytest.fixture(scope="module")
def faults_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, faults_dir: Path) -> Iterator[Engine]:
    """An engine whose threads can be told to die, and whose requests end soon."""
    flags = ("--threads=1", "--request-timeout=3", "--cpu-bind=0", "--backlog=1000000", "--drain-timeout=0")
    environment = {"ENGINESCOPE_FAULTS_DIR": str(faults_dir)}
    with running_engine(tmp_path_factory.mktemp("rt"), *flags, **environment) as started:
        yield started


def test_the_core_is_bound_and_the_api_is_not(faulty: Engine) -> None:
    core, api = faulty.page("core").header.pid, faulty.page("api").header.pid
    threads = [int(task.name) for task in Path(f"/proc/{core}/task").iterdir()]
    assert len(threads) > 3
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({0})}
    assert os.sched_getaffinity(api) == os.sched_getaffinity(0)


def test_a_smaller_backlog_than_asked_is_warned_of(faulty: Engine) -> None:
    assert faulty.page("api")["log_warning"] >= 1
    command = (sys.executable, "-m", "instrumented_engine.api", "--port", str(free_port()), "--backlog=1000000")
    endpoints = [f"--{name}-endpoint=ipc://{faulty.runtime_dir}/{name}2" for name in ("input", "output")]
    with subprocess.Popen([*command, *endpoints], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "WARNING" in line)
        process.terminate()
    granted = Path("/proc/sys/net/core/somaxconn").read_text().strip()
    assert "--backlog 1000000" in line
    assert f"holds {granted} connections" in line


def test_an_idle_engine_is_healthy_while_its_core_is_stopped(faulty: Engine) -> None:
    api, core = faulty.page("api"), faulty.page("core").header.pid
    os.kill(core, signal.SIGSTOP)
    try:
        later = api["loop_tick_ns"] + 2_700_000_000
        eventually("longer than any rule waits", lambda: api["loop_tick_ns"] > later)
        assert problem(faulty) is None
    finally:
        os.kill(core, signal.SIGCONT)


def test_a_blocked_event_loop_shows_in_its_lag(faulty: Engine, faults_dir: Path) -> None:
    api = faulty.page("api")
    (faults_dir / "block_loop").write_text("1.2")
    eventually("the block to begin", lambda: not (faults_dir / "block_loop").exists())
    assert problem(faulty) is None  # by the time it can answer it is well again
    counts, _ = api.histogram("event_loop_lag")
    assert counts[api.layout.bounds.index(2_500_000_000)] >= 1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("stall_core", "step loop has made no progress"),
        ("input_thread", "input thread has been gone"),
        ("output_thread", "output thread has been gone"),
        ("receiver", "the thread that receives outputs has ended"),
    ],
)
def test_health_names_what_is_stuck(
    faulty: Engine, faults_dir: Path, pool: ThreadPoolExecutor, fault: str, sentence: str
) -> None:
    api = faulty.page("api")
    assert problem(faulty) is None
    assert api["health_problems"] == 0
    (faults_dir / fault).write_text("4")
    answers = [pool.submit(ask, faulty, max_tokens=50) for _ in range(2)]
    said = eventually("a judgement", lambda: problem(faulty), 15)
    assert sentence in said
    eventually("the number on the page", lambda: api["health_problems"] >= 1)
    # Clients are told by the request timeout at the latest.
    assert {answer.result(30).status_code for answer in answers} <= {503, 504, 200}
    if fault == "receiver":  # a thread of the API process: nothing but a restart of everything mends it
        return
    if fault != "stall_core":
        os.kill(faulty.page("core").header.pid, signal.SIGKILL)
    eventually("health", lambda: problem(faulty) is None, 60)
    assert ask(faulty).status_code == 200


def put_model(path: Path, sign: float) -> None:
    """A model of random weights in place of the one that is there; another sign gives other answers."""
    write(path.with_suffix(".new.gguf"), {name: sign * weight for name, weight in tensors(tied=True).items()})
    path.with_suffix(".new.gguf").rename(path)


def test_sighup_loads_the_model_again_behind_an_open_listener(
    runtime_dir: Path, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    model = tmp_path / "model.gguf"
    put_model(model, 1.0)
    flags = ("--threads=1", "--drain-timeout=30", f"--model={model}")
    with running_engine(runtime_dir, *flags) as engine:
        api, core = engine.page("api"), engine.page("core")
        first = text(engine)
        inside = start_long(engine, pool, max_tokens=480)
        put_model(model, -1.0)
        os.kill(engine.pid, signal.SIGHUP)
        eventually("the gate", lambda: api["gate"] == 1)
        refused = ask(engine)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "loading its model again" in (problem(engine) or "")
        assert inside.result(60).json()["usage"]["completion_tokens"] == 480
        eventually("the gate to open", lambda: api["gate"] == 0, 60)
        assert core.liveness() is Liveness.EXITED
        assert text(engine) != first
        assert engine.page("core").header.generation == 1
        assert engine.page("api").header.pid == api.header.pid
        assert api["shed_reloading"] >= 1
        assert api["log_error"] == 0

        # A file that is no model takes the core away, and the next good one brings it back.
        model.write_bytes(b"GGUF no more")
        os.kill(engine.pid, signal.SIGHUP)
        eventually("the gate", lambda: api["gate"] == 1)
        put_model(model, 1.0)
        eventually("the gate to open", lambda: api["gate"] == 0, 60)
        assert text(engine) == first

        model.unlink()
        os.kill(engine.pid, signal.SIGHUP)
        generation = engine.page("core").header.generation
        assert text(engine) == first
        assert engine.page("core").header.generation == generation


def text(engine: Engine) -> str:
    return str(ask(engine, prompt=[7, 8, 9], max_tokens=12).json()["choices"][0]["text"])


def install(folder: Path, name: str) -> list[str]:
    for suffix in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"{name}.{suffix}", folder / f"new.{suffix}")
        (folder / f"new.{suffix}").rename(folder / f"live.{suffix}")
    return [f"--tls-cert={folder}/live.pem", f"--tls-key={folder}/live.key"]


def certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)


def test_https_with_a_certificate_that_is_replaced(runtime_dir: Path, tmp_path: Path) -> None:
    """The API process alone: what is served does not matter here."""
    port = free_port()
    endpoints = [f"--{name}-endpoint=ipc://{runtime_dir}/{name}" for name in ("input", "output")]
    command = (sys.executable, "-m", "instrumented_engine.api", "--port", str(port), *endpoints)
    with running(*command, *install(tmp_path, "first")):
        eventually("the listener", lambda: listens(port))
        first = ssl.create_default_context(cafile=str(CERTIFICATES / "first.pem"))
        with httpx.Client(verify=first, base_url=f"https://localhost:{port}") as open_before:
            assert open_before.get("/live").json() == {"status": "ok"}
            install(tmp_path, "second")
            second = (CERTIFICATES / "second.pem").read_text().strip()
            eventually("the new certificate", lambda: certificate(port).strip() == second)
            assert open_before.get("/live").status_code == 200
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(f"https://localhost:{port}/live", verify=first)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_messages_between_the_processes_over_tcp_have_heartbeats(runtime_dir: Path) -> None:
    ports = [free_port() for _ in range(2)]
    flags = [f"--{name}-endpoint=tcp://127.0.0.1:{port}" for name, port in zip(("input", "output"), ports, strict=True)]
    limits = ("--heartbeat-interval=0.2", "--send-buffer-bytes=65536", "--threads=1")
    with running_engine(runtime_dir, *flags, *limits) as engine:
        core: Reader = engine.page("core")
        os.kill(core.header.pid, signal.SIGSTOP)
        try:
            # Nothing was sent: without heartbeats these connections would stay open for ever.
            eventually("both to be given up", lambda: connections(ports) == 0)
        finally:
            os.kill(core.header.pid, signal.SIGCONT)
        eventually("both to come back", lambda: connections(ports) == 2)
        assert ask(engine).status_code == 200


def connections(ports: list[int]) -> int:
    """Established connections on the API's side of its two endpoints."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[1].split(":")[1], 16) in ports and row[3] == "01" for row in rows)
