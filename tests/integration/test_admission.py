"""Who gets in, who is told to come back, and what a client that does not cooperate can cost."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from telemetry.layout import ERROR_CLASSES, SHED_REASONS
from telemetry.scoreboard import Reader
from tests.conftest import eventually
from tests.integration.conftest import Engine, is_healthy, running_engine
from tests.integration.load import outcomes, raise_fd_limit, request, storm

LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 4}


def ask(engine: Engine, **body: object) -> httpx.Response:
    with engine.client() as client:
        return client.post("/v1/completions", json=SHORT | body)


def shed(page: Reader) -> dict[str, int]:
    """Refused requests by reason, those that happened."""
    return {name: page[f"shed_{name}"] for name in SHED_REASONS if page[f"shed_{name}"]}


def errors(page: Reader) -> dict[str, int]:
    return {name: page[f"errors_{name}"] for name in ERROR_CLASSES if page[f"errors_{name}"]}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with a large batch and an exporter whose endpoint does not answer."""
    flags = ("--threads=1", "--max-num-seqs=64", "--write-timeout=3")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with running_engine(tmp_path_factory.mktemp("rt"), *flags, **environment) as started:
        yield started


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with tight bounds."""
    flags = ("--threads=1", "--max-num-seqs=2", "--max-waiting-requests=3", "--request-timeout=2")
    with running_engine(tmp_path_factory.mktemp("rt"), *flags) as started:
        yield started


def test_a_protocol_error_closes_the_connection_and_others_do_not(wide: Engine) -> None:
    page = wide.page("api")
    with wide.client() as client:
        refused = client.post("/v1/completions", json={"prompt": 7})
        assert (refused.status_code, refused.headers["connection"]) == (400, "close")
        missing = client.post("/v1/completions", json={"prompt": "x", "model": "other"})
        assert missing.status_code == 404
        assert "connection" not in missing.headers
        assert client.get("/v1/completions").status_code == 405
    with socket.create_connection(("127.0.0.1", wide.port), 10) as no_http:
        no_http.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert no_http.makefile("rb").read().startswith(b"HTTP/1.1 400")
    eventually("the counts", lambda: errors(page) == {"protocol": 2, "not_found": 2})
    assert page["log_info"] >= 3


def test_a_request_that_takes_too_long_ends_with_504(narrow: Engine) -> None:
    api, core = narrow.page("api"), narrow.page("core")
    with narrow.client() as client:
        answer = client.post("/v1/completions", json=LONG)
        assert (answer.status_code, answer.json()["error"]["type"]) == (504, "timeout_error")
        assert "--request-timeout" in answer.json()["error"]["message"]
        with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            *_, last = [line for line in response.iter_lines() if line]
    assert response.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 504
    eventually("both to be counted", lambda: errors(api) == {"timeout": 2})
    eventually("the core to be free", lambda: (core["requests_aborted"], core["kv_blocks_used"]) == (2, 0))


def test_a_full_waiting_queue_pushes_back_at_once(narrow: Engine) -> None:
    api, core = narrow.page("api"), narrow.page("core")
    with ThreadPoolExecutor(5) as pool:
        inside = [pool.submit(ask, narrow, **LONG) for _ in range(2)]
        eventually("the batch", lambda: core["requests_running"] == 2)
        inside += [pool.submit(ask, narrow, **LONG) for _ in range(3)]
        eventually("the queue", lambda: core["requests_waiting"] == 3)
        assert 0 < core["running_oldest_ns"] < core["waiting_oldest_ns"]
        refused = [ask(narrow) for _ in range(4)]
        assert [answer.status_code for answer in refused] == [503] * 4
        assert refused[0].headers["retry-after"] == "1"
        assert "--max-waiting-requests" in refused[0].json()["error"]["message"]
        assert [answer.result(60).status_code for answer in inside] == [504] * 5
    assert ask(narrow).status_code == 200
    eventually("the counts", lambda: shed(api) == {"waiting": 4} and api["requests_shed"] == 4)
    assert errors(api)["overload"] == 4


def probe(engine: Engine) -> httpx.Response:
    """A request whose answer is not waited for beyond what a refusal takes."""
    try:
        return httpx.post(f"{engine.url}/v1/completions", json=SHORT, timeout=0.5)
    except httpx.TimeoutException:
        return httpx.Response(599)


def unhealthy(engine: Engine) -> str | None:
    answer = httpx.get(f"{engine.url}/health", timeout=5)
    assert httpx.get(f"{engine.url}/live", timeout=5).status_code == 200
    return None if answer.status_code == 200 else str(answer.json()["error"]["message"])


def test_outputs_that_nobody_receives_push_back(runtime_dir: Path, tmp_path: Path) -> None:
    flags = ("--max-output-age=0.5", "--max-output-depth=1000000", "--drain-timeout=0")
    with (
        ThreadPoolExecutor(1) as pool,
        running_engine(runtime_dir, *flags, ENGINESCOPE_FAULTS_DIR=str(tmp_path)) as engine,
    ):
        api = engine.page("api")
        (tmp_path / "receiver").touch()
        pool.submit(ask, engine, **LONG)
        refused = eventually("a refusal", lambda: next((a for a in [probe(engine)] if a.status_code == 503), None))
        assert "--max-output-age" in refused.json()["error"]["message"]
        eventually("the count", lambda: shed(api).keys() == {"output_age"})
        assert "thread that receives outputs has ended" in eventually("health to say so", lambda: unhealthy(engine))
        eventually("the other reason, too", lambda: "received no output" in (unhealthy(engine) or ""))


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_dead_io_thread_of_a_core_is_named(runtime_dir: Path, tmp_path: Path, kind: str) -> None:
    """It takes one message to kill it. Once that client has left nothing is outstanding, and health still says so."""
    with running_engine(runtime_dir, "--drain-timeout=0", ENGINESCOPE_FAULTS_DIR=str(tmp_path)) as engine:
        api, core = engine.page("api"), engine.page("core")
        thread = core[f"{kind}_thread_id"]
        assert unhealthy(engine) is None
        (tmp_path / f"{kind}_thread").touch()
        probe(engine)
        eventually("the thread's end", lambda: not Path(f"/proc/{core.header.pid}/task/{thread}").exists())
        named = f"the core's {kind} thread has been gone"
        eventually("health to say so", lambda: named in (unhealthy(engine) or ""))
        eventually("the page to say so", lambda: api["health_problems"] >= 1)


def test_the_adaptive_limit_sheds_what_is_above_its_rate(runtime_dir: Path) -> None:
    with running_engine(runtime_dir, "--threads=1", "--adaptive-limit") as engine:
        api = engine.page("api")
        answers = asyncio.run(storm(engine.port, [SHORT] * 100))
        assert outcomes(answers)["lost"] == 0
        refused = outcomes(answers)["error"]
        assert 0 < refused < 100
        eventually("the counts", lambda: shed(api) == {"rate": refused})
        eventually("the rate", lambda: api["limiter_rate_milli"] >= 1000)


def slow_reader(port: int) -> socket.socket:
    """A streaming client that reads nothing. A small window and segment keep the kernel from holding it all."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    client.connect(("127.0.0.1", port))
    client.sendall(request(LONG | {"stream": True}))
    return client


def rss(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def test_clients_that_do_not_read_cost_little_and_are_let_go(wide: Engine) -> None:
    readers = 16
    api, core = wide.page("api"), wide.page("core")
    assert ask(wide, stream=True, max_tokens=400).status_code == 200
    before, aborted = rss(api.header.pid), core["requests_aborted"]
    clients = [slow_reader(wide.port) for _ in range(readers)]
    eventually("all to stream", lambda: api["streaming_inflight"] == readers)
    assert api["oldest_request_ns"] <= api["streaming_oldest_ns"]
    # The kernel lets them go after the write timeout, in the middle of their answers.
    eventually("their places", lambda: (core["requests_running"], core["kv_blocks_used"]) == (0, 0))
    assert core["requests_aborted"] - aborted == api["requests_aborted"] == readers
    # Events of 8000 tokens for each would be more than 25 MB.
    assert rss(api.header.pid) - before < 12_000_000
    assert ask(wide).status_code == 200
    for client in clients:
        client.close()


def test_two_thousand_connections_lose_and_mix_up_nothing(wide: Engine) -> None:
    raise_fd_limit()
    connections, distinct = 2000, 50
    api, core = wide.page("api"), wide.page("core")
    ok, received = api["requests_ok"], api["requests_received"]
    bodies: list[dict[str, Any]] = [
        SHORT | {"prompt": f"{number % distinct:02d}" * (1 + number % 5), "max_tokens": 2}
        for number in range(connections)
    ]
    with wide.client() as client:
        alone = [client.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies[:distinct]]
    assert len(set(alone)) > distinct // 2  # the answer tells the prompt
    answers = asyncio.run(storm(wide.port, bodies))
    assert outcomes(answers) == {"ok": connections}
    assert len({answer.id for answer in answers}) == connections
    for number, answer in enumerate(answers):
        assert (answer.prompt_tokens, answer.text) == (len(bodies[number]["prompt"]), alone[number % distinct])
    eventually("rest", lambda: api["requests_inflight"] == 0)
    assert api["requests_ok"] - ok == api["requests_received"] - received == connections + distinct
    assert api["core_0_input_sent"] == core["input_messages_decoded"] == core["input_messages_taken"]
    assert api["core_0_output_received"] == core["output_messages_sent"] == core["output_messages_queued"]


def kill_in_mid_load(engine: Engine, pid: int, requests: int) -> list[Any]:
    """Half of the requests are streamed; ``pid`` is killed while the batch is full."""
    bodies = [LONG | {"max_tokens": 100, "stream": number % 2 == 0} for number in range(requests)]
    core = engine.page("core")

    async def main() -> list[Any]:
        load = asyncio.create_task(storm(engine.port, bodies))
        while core["requests_running"] < 8:
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return await load

    return asyncio.run(main())


def test_an_exporter_killed_in_mid_load_is_nobodys_loss(wide: Engine) -> None:
    exporter = wide.page("exporter").header
    answers = kill_in_mid_load(wide, exporter.pid, 40)
    assert outcomes(answers) == {"ok": 40}
    eventually("another exporter", lambda: wide.page("exporter").header.pid != exporter.pid)


def test_a_core_killed_in_mid_load_is_told_to_every_client(wide: Engine) -> None:
    api = wide.page("api")
    told = ("requests_ok", "requests_server_error", "requests_shed")
    before = {name: api[name] for name in told}
    answers = kill_in_mid_load(wide, wide.page("core").header.pid, 120)
    found = outcomes(answers)
    assert found["error"] > 0
    assert found["ok"] + found["error"] == 120
    eventually("rest", lambda: api["requests_inflight"] == 0)
    assert api["requests_ok"] - before["requests_ok"] == found["ok"]
    assert sum(api[name] - before[name] for name in told) == 120
    assert api["log_error"] >= 1
    eventually("the core to be back", lambda: is_healthy(wide), 60)
    assert ask(wide).status_code == 200
