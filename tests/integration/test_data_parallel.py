"""Several cores behind one API process: one engine to its clients, each core for itself when something breaks."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from enginescope.otlp_sink import SpanStore
from telemetry.layout import SHED_REASONS
from telemetry.scoreboard import Liveness, Reader
from telemetry.stages import STAGES
from tests.conftest import eventually, free_port
from tests.integration.conftest import Engine, running_engine, running_sink
from tests.integration.load import outcomes, storm
from tests.integration.test_engine_api import complete, stream
from tests.integration.test_traces import check_trace, complete_trace, send, traced_engine

LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 4}


def all_serve(engine: Engine) -> bool:
    return health(engine) == {"status": "ok"}


def health(engine: Engine) -> dict[str, Any]:
    """The answer while it is 200."""
    answer = httpx.get(f"{engine.url}/health", timeout=20)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def ask(engine: Engine, **body: object) -> httpx.Response:
    with engine.client() as client:
        return client.post("/v1/completions", json=SHORT | body)


def cores_of(engine: Engine, count: int) -> list[Reader]:
    return [engine.page(f"core-{index}") for index in range(count)]


def running(cores: list[Reader]) -> list[int]:
    return [core["requests_running"] for core in cores]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


@pytest.fixture(scope="module")
def faults_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, faults_dir: Path) -> Iterator[Engine]:
    """Two cores whose threads can be told to die or to wait."""
    flags = ("--data-parallel-size=2", "--threads=1", "--max-num-seqs=8", "--cpu-bind=0", "--drain-timeout=60")
    environment = {"ENGINESCOPE_FAULTS_DIR": str(faults_dir)}
    with running_engine(tmp_path_factory.mktemp("rt"), *flags, **environment) as started:
        eventually("both cores", lambda: all_serve(started))
        yield started


def prompts(count: int) -> list[str]:
    return [f"{number} " * (1 + number * 7 % 40) for number in range(count)]


def texts(engine: Engine, asked: list[str]) -> list[str]:
    """Answers to all at once, every other one streamed."""

    def one(number: int) -> str:
        body = {"prompt": asked[number], "max_tokens": 30}
        if number % 2:
            return str(complete(engine, **body)["choices"][0]["text"])
        return "".join(event["choices"][0]["text"] for event in stream(engine, "/v1/completions", **body))

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, range(len(asked))))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one core answers."""
    with running_engine(tmp_path_factory.mktemp("rt"), "--threads=1") as engine:
        return texts(engine, prompts(40))


@pytest.mark.parametrize("cores", [2, pytest.param(3, marks=pytest.mark.long)])
def test_several_cores_answer_what_one_answers(runtime_dir: Path, single: list[str], cores: int) -> None:
    assert len(set(single)) > 30
    with running_engine(runtime_dir, f"--data-parallel-size={cores}", "--threads=1") as engine:
        eventually("all cores", lambda: all_serve(engine))
        assert texts(engine, prompts(40)) == single
        api, pages = engine.page("api"), cores_of(engine, cores)
        shares = [page["input_messages_taken"] for page in pages]
        assert sum(shares) == 40
        assert min(shares) > 0
        for index, page in enumerate(pages):
            eventually("the last output", lambda p=page, i=index: counts_agree(api, p, i))  # type: ignore[misc]
        assert len({page.header.pid for page in pages}) == cores


def counts_agree(api: Reader, core: Reader, index: int) -> bool:
    """Each pair of sockets has counters of its own at both ends."""
    sent = api[f"core_{index}_input_sent"] == core["input_messages_decoded"]
    return sent and api[f"core_{index}_output_received"] == core["output_messages_sent"]


def test_each_trace_is_whole_and_names_the_core_that_did_the_work(runtime_dir: Path) -> None:
    with running_sink() as (_, store, port), traced_engine(runtime_dir, port, ENGINESCOPE_DATA_PARALLEL_SIZE="2") as e:
        eventually("both cores", lambda: all_serve(e))
        with ThreadPoolExecutor(8) as pool:
            sent = list(pool.map(lambda number: send(e, number), range(24)))
        for trace_id, client_span_id in sent:
            spans = eventually("the trace", lambda t=trace_id: complete_trace(store, t))  # type: ignore[misc]
            check_trace(spans, client_span_id)
        api, cores = e.page("api").header.pid, {core.header.pid for core in cores_of(e, 2)}
        assert {pids_of(store, trace_id) for trace_id, _ in sent} == {(api, core) for core in cores}


def pids_of(store: SpanStore, trace_id: str) -> tuple[int, int]:
    """The process that had the API's stages, and the one that had the core's."""
    pids: dict[str, set[int]] = {"api": set(), "core": set()}
    for span in store.trace(trace_id):
        for stage in STAGES:
            if span["name"] == stage.span_name:
                pids[stage.process].add(span["resource"]["process.pid"])
    (api,), (core,) = pids.values()
    return api, core


def hold(engine: Engine, client: httpx.Client, **body: object) -> tuple[Any, int]:
    """A stream that goes on until its response is closed, and the core that has it."""
    cores = cores_of(engine, 2)
    before = running(cores)
    response = client.send(
        client.build_request("POST", "/v1/completions", json=LONG | {"stream": True} | body), stream=True
    )
    assert response.status_code == 200

    def taker() -> int | None:
        grown = [index for index, count in enumerate(running(cores)) if count > before[index]]
        return grown[0] + 1 if grown else None

    return response, eventually("the request to run", taker) - 1


def test_requests_go_where_there_is_least_and_aborts_to_where_they_are(pair: Engine) -> None:
    api, cores = pair.page("api"), cores_of(pair, 2)
    aborted = [core["requests_aborted"] for core in cores]
    with pair.client() as client:
        response, busy = hold(pair, client)
        taken = [core["input_messages_taken"] for core in cores]
        assert {ask(pair, prompt=f"short {number}").status_code for number in range(6)} == {200}
        assert [core["input_messages_taken"] - before for core, before in zip(cores, taken, strict=True)] == (
            [0, 6] if busy == 0 else [6, 0]
        )
        response.close()
    eventually("the abort", lambda: cores[busy]["requests_aborted"] == aborted[busy] + 1)
    eventually("its blocks", lambda: [core["kv_blocks_used"] for core in cores] == [0, 0])
    assert cores[1 - busy]["requests_aborted"] == aborted[1 - busy]
    eventually("rest", lambda: api["requests_inflight"] == 0)


def test_the_choices_of_a_request_share_a_core(pair: Engine) -> None:
    cores = cores_of(pair, 2)
    taken = [core["input_messages_taken"] for core in cores]
    answer = complete(pair, prompt="together", n=4, max_tokens=20)
    assert len({choice["text"] for choice in answer["choices"]}) == 1
    assert sorted(core["input_messages_taken"] - before for core, before in zip(cores, taken, strict=True)) == [0, 4]


@pytest.mark.long
def test_a_stalled_core_gets_nothing_new_and_the_other_serves(
    pair: Engine, faults_dir: Path, pool: ThreadPoolExecutor
) -> None:
    cores, api = cores_of(pair, 2), pair.page("api")
    fault = faults_dir / "stall_core@core-1"
    fault.write_text("15")
    try:
        # One request for each: the second goes to the core that the first is not at.
        caught = [pool.submit(ask, pair, prompt=f"caught {number}", max_tokens=3000) for number in range(2)]
        eventually("the stall", lambda: not fault.exists())
        said = eventually("a judgement", lambda: health(pair).get("cores"), 20)
        assert [sentence.partition(":")[0] for sentence in said] == ["core-1"]
        assert "step loop has made no progress" in said[0]
        assert api["health_problems"] == 1
        decoded = cores[1]["input_messages_decoded"]
        assert {ask(pair, prompt=f"new {number}").status_code for number in range(5)} == {200}
        assert cores[1]["input_messages_decoded"] == decoded
        assert [answer.result(60).status_code for answer in caught] == [200, 200]
    finally:
        fault.unlink(missing_ok=True)
    eventually("health", lambda: all_serve(pair))


def kill_in_mid_load(engine: Engine, victim: Reader, requests: int) -> list[Any]:
    """Half of the requests are streamed; the core is killed while both batches are full."""
    bodies = [
        LONG | {"max_tokens": 150, "prompt": f"p{number}", "stream": number % 2 == 0} for number in range(requests)
    ]
    cores = cores_of(engine, 2)

    async def main() -> list[Any]:
        load = asyncio.create_task(storm(engine.port, bodies))
        while min(running(cores)) < 4 and not load.done():
            await asyncio.sleep(0.01)
        os.kill(victim.header.pid, signal.SIGKILL)
        return await load

    return asyncio.run(main())


def test_a_core_killed_in_mid_load_takes_only_its_own_requests(pair: Engine) -> None:
    requests = 60
    api, (core, victim) = pair.page("api"), cores_of(pair, 2)
    told = ("requests_ok", "requests_server_error", "requests_shed")
    before, pid = {name: api[name] for name in told}, core.header.pid
    failed, taken = core["requests_failed"], core["input_messages_taken"]
    answers = kill_in_mid_load(pair, victim, requests)
    found = outcomes(answers)
    assert found["error"] >= 4
    assert found["ok"] + found["error"] == requests
    # Nobody but those who were at the dead core was told of an error.
    assert found["ok"] >= core["input_messages_taken"] - taken > 0
    assert {answer.status for answer in answers if answer.outcome == "error"} <= {0, 200, 500}
    eventually("rest", lambda: api["requests_inflight"] == 0)
    assert sum(api[name] - before[name] for name in told) == requests
    assert api["requests_ok"] - before["requests_ok"] == found["ok"]
    assert api["requests_shed"] == before["requests_shed"]
    assert core["requests_failed"] == failed
    assert (core.header.pid, core.liveness()) == (pid, Liveness.ALIVE)
    assert victim.liveness() is Liveness.DEAD
    eventually("the core to be back", lambda: all_serve(pair), 60)
    generations = [page.header.generation for page in cores_of(pair, 2)]
    assert generations == [core.header.generation, victim.header.generation + 1]
    assert set(texts_spread(pair)) == {True}


def texts_spread(engine: Engine) -> list[bool]:
    """Whether each core does something for eight requests at once."""
    cores = cores_of(engine, 2)
    taken = [core["input_messages_taken"] for core in cores]
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(lambda _: ask(engine, max_tokens=100), range(8))} == {200}
    return [core["input_messages_taken"] > before for core, before in zip(cores, taken, strict=True)]


def test_while_one_core_is_away_the_others_serve_and_health_says_so(pair: Engine, pool: ThreadPoolExecutor) -> None:
    victim = pair.page("core-0")
    os.kill(victim.header.pid, signal.SIGKILL)
    said = eventually("health to say so", lambda: health(pair).get("cores"))
    assert said == ["core-0: not running: it is starting, or it died and is being restarted"]
    assert {ask(pair, prompt=f"x{number}").status_code for number in range(3)} == {200}
    eventually("the core to be back", lambda: all_serve(pair), 60)


@pytest.mark.long
def test_a_reload_replaces_every_core(pair: Engine, pool: ThreadPoolExecutor) -> None:
    api, before = pair.page("api"), cores_of(pair, 2)
    received = api["requests_received"]
    inside = [pool.submit(ask, pair, prompt=f"in {number}", max_tokens=3000) for number in range(4)]
    eventually("all to be inside", lambda: api["requests_received"] == received + 4)
    os.kill(pair.pid, signal.SIGHUP)
    eventually("the gate", lambda: api["gate"] == 1)
    assert [answer.result(60).status_code for answer in inside] == [200] * 4
    eventually("the gate to open", lambda: api["gate"] == 0, 60)
    eventually("both cores", lambda: all_serve(pair), 60)
    assert [page.liveness() for page in before] == [Liveness.EXITED] * 2
    after = cores_of(pair, 2)
    assert [new.header.generation - old.header.generation for new, old in zip(after, before, strict=True)] == [1, 1]
    assert pair.page("api").header.pid == api.header.pid
    assert set(texts_spread(pair)) == {True}


def shed(page: Reader) -> dict[str, int]:
    return {name: page[f"shed_{name}"] for name in SHED_REASONS if page[f"shed_{name}"]}


@pytest.mark.long
def test_admission_asks_the_best_core(runtime_dir: Path, pool: ThreadPoolExecutor) -> None:
    flags = ("--max-num-seqs=1", "--max-waiting-requests=1", "--drain-timeout=0", "--threads=1")
    with running_engine(runtime_dir, "--data-parallel-size=2", *flags) as engine:
        eventually("both cores", lambda: all_serve(engine))
        api, cores = engine.page("api"), cores_of(engine, 2)
        for number in range(4):  # the bound of one core alone would refuse the third
            pool.submit(ask, engine, **LONG | {"prompt": f"{number}"})
            eventually("it to be inside", lambda n=number: inside(cores) == n + 1)  # type: ignore[misc]
        assert running(cores) == [1, 1]
        refused = ask(engine)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "1 requests are waiting already" in refused.json()["error"]["message"]
        eventually("the count", lambda: shed(api) == {"waiting": 1})
        os.kill(engine.pid, signal.SIGTERM)


def inside(cores: list[Reader]) -> int:
    return sum(core["requests_running"] + core["requests_waiting"] for core in cores)


@pytest.mark.long
def test_sigterm_drains_all_cores_and_removes_every_socket(runtime_dir: Path, pool: ThreadPoolExecutor) -> None:
    with running_engine(runtime_dir, "--data-parallel-size=3", "--threads=1", "--drain-timeout=60") as engine:
        eventually("all cores", lambda: all_serve(engine))
        api, cores = engine.page("api"), cores_of(engine, 3)
        answers = [pool.submit(ask, engine, prompt=f"{number}", max_tokens=3000) for number in range(6)]
        # On a slow host the first may have ended when the last comes, which no bound on a running batch survives.
        eventually("all to be inside", lambda: api["requests_received"] == 6)
        assert len(list(runtime_dir.glob("*.sock"))) == 6
        os.kill(engine.pid, signal.SIGTERM)
        assert [answer.result(60).json()["usage"]["completion_tokens"] for answer in answers] == [3000] * 6
        eventually("the end", lambda: [core.liveness() for core in cores] == [Liveness.EXITED] * 3)
        eventually("the sockets to go", lambda: not list(runtime_dir.glob("*.sock")))


def connections(ports: range) -> dict[int, int]:
    """Established connections by port, on the API's side."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "01"]
    return {port: found.count(port) for port in ports if port in found}


def free_ports(count: int) -> range:
    """So many neighbours that nobody uses."""
    while True:
        first = free_port()
        if [free_port() for _ in range(count - 1)] == list(range(first + 1, first + count)):
            return range(first, first + count)


def test_over_tcp_on_the_address_of_an_interface(runtime_dir: Path) -> None:
    ports = free_ports(4)
    flags = ("--data-parallel-size=2", "--interface=lo", f"--core-port={ports[0]}", "--threads=1")
    with running_engine(runtime_dir, *flags, "--heartbeat-interval=0.2", "--heartbeat-timeout=0.5") as engine:
        eventually("both cores", lambda: all_serve(engine))
        assert engine.page("core-1").endpoints() == {
            "input-1": f"tcp://127.0.0.1:{ports[2]}",
            "output-1": f"tcp://127.0.0.1:{ports[3]}",
        }
        eventually("the connections", lambda: connections(ports) == dict.fromkeys(ports, 1))
        stopped = engine.page("core-1").header.pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            # Nothing was sent: without heartbeats these connections would stay open for ever.
            eventually("its own to be given up", lambda: connections(ports) == dict.fromkeys(ports[:2], 1))
            assert {ask(engine, prompt=f"{number}").status_code for number in range(4)} == {200}
        finally:
            os.kill(stopped, signal.SIGCONT)
        eventually("them to come back", lambda: connections(ports) == dict.fromkeys(ports, 1))
        eventually("both to serve", lambda: set(texts_spread(engine)) == {True})
