"""What goes wrong around the engine stays where it is: one clear sentence or error, counted, and the rest goes on."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from instrumented_engine import wire
from tests.conftest import eventually, free_port, running
from tests.integration.conftest import Engine, is_healthy, running_engine

LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True}


def ask(engine: Engine, **body: object) -> httpx.Response:
    with engine.client() as client:
        return client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4} | body)


def push(endpoint: str, frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.connect(endpoint)
        sender.linger = 2000
        sender.send_multipart(frames)


def test_garbage_on_the_output_socket_is_counted(engine: Engine) -> None:
    page = engine.page("api")
    before = page["output_messages_rejected"]
    for frames in ([b"garbage"], [b"", bytes(24)], [b"\xc1" * 50, bytes(24)], [b"x"] * 9):
        push(page.endpoints()["output"], frames)
    eventually("the rejects", lambda: page["output_messages_rejected"] == before + 4)
    assert ask(engine).status_code == 200


def test_oversized_messages_are_counted_and_cost_nothing_else(runtime_dir: Path) -> None:
    with running_engine(runtime_dir, "--max-message-bytes=4096") as engine:
        page = engine.page("api")
        push(page.endpoints()["output"], [bytes(5000), bytes(24)])
        eventually("the reject", lambda: page["output_messages_rejected"] == 1)
        assert ask(engine).status_code == 200
        refused = ask(engine, prompt=[1] * 2000)
        assert refused.status_code == 413
        assert "--max-message-bytes 4096" in refused.json()["error"]["message"]


def test_a_frame_too_large_to_receive_is_counted(runtime_dir: Path) -> None:
    """libzmq ends such a peer's connection; nothing of it reaches the engine."""
    with running_engine(runtime_dir, "--max-message-bytes=4096") as engine, zmq.Context() as context:
        page = engine.page("api")
        with context.socket(zmq.PUSH) as sender:
            sender.connect(page.endpoints()["output"])
            sender.linger = 0
            sender.send_multipart([bytes(50_000), bytes(24)])
            eventually("the end of its connection", lambda: page["output_disconnects"] == 1)
        assert page["output_messages_rejected"] == 0
        assert ask(engine).status_code == 200


def test_a_stranger_that_speaks_http_to_the_output_socket_is_counted(engine: Engine) -> None:
    page = engine.page("api")
    before = page["output_messages_rejected"], page["output_disconnects"]
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(page.endpoints()["output"].removeprefix("ipc://"))
        stranger.sendall(b"GET / HTTP/1.1\r\n" * 10)
        eventually("the reject", lambda: page["output_messages_rejected"] > before[0])
    eventually("the end of its connection", lambda: page["output_disconnects"] > before[1])
    assert ask(engine).status_code == 200


def test_garbage_on_a_cores_input_socket(runtime_dir: Path) -> None:
    """The core alone, with this test in the API's place."""
    ports = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    flags = ("--input-endpoint", ports[0], "--output-endpoint", ports[1])
    with zmq.Context() as context, context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as outputs:
        requests.linger = outputs.linger = 0
        requests.bind(ports[0])
        outputs.bind(ports[1])
        outputs.rcvtimeo = 60_000
        with running(sys.executable, "-m", "instrumented_engine.core", *flags):
            ready, _ = wire.decode_output(outputs.recv_multipart())
            assert isinstance(ready, wire.Ready)
            for frames in ([b"garbage"], [b"\xc1", bytes(8)], [b"", bytes(8)]):
                requests.send_multipart(frames)
            good: dict[str, Any] = {
                "max_tokens": 2, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": None, "stop_token_ids": [],
                "trace_id": bytes(16), "span_id": bytes(8),
            }  # fmt: skip
            outside = wire.Submit(request_id=1, prompt=wire.pack_tokens([10**6]), **good)
            valid = wire.Submit(request_id=2, prompt=wire.pack_tokens([1, 2]), **good)
            for message in (outside, valid):
                requests.send_multipart(wire.input_frames(wire.encode(message))[0])
            ends: list[wire.Finished] = []
            while len(ends) < 2:
                message_out, _ = wire.decode_output(outputs.recv_multipart())
                assert isinstance(message_out, wire.Outputs)
                ends += message_out.finished
        assert [(end.request_id, end.reason) for end in ends] == [(1, "error"), (2, "length")]
        assert "outside the vocabulary" in ends[0].error


def test_a_killed_core_fails_its_requests_and_comes_back(runtime_dir: Path) -> None:
    with running_engine(runtime_dir) as engine, ThreadPoolExecutor(4) as pool:
        core = engine.page("core")
        waiting = [pool.submit(ask, engine, **LONG) for _ in range(4)]
        eventually("the batch", lambda: core["requests_running"] == 4)
        os.kill(core.header.pid, signal.SIGKILL)
        answers = [answer.result(20) for answer in waiting]
        assert [answer.status_code for answer in answers] == [500] * 4
        assert {answer.json()["error"]["message"] for answer in answers} == {"the core process died"}
        eventually("the core to be back", lambda: is_healthy(engine), 60)
        assert ask(engine).status_code == 200
        assert engine.page("core").header.generation == 1


def test_without_a_core_requests_are_shed_with_retry_after(runtime_dir: Path) -> None:
    port = free_port()
    endpoints = [f"--{name}-endpoint=ipc://{runtime_dir}/{name}" for name in ("input", "output")]
    with running(sys.executable, "-m", "instrumented_engine.api", "--port", str(port), *endpoints) as process:
        lonely = Engine(port, runtime_dir, process.pid)
        eventually("the API", lambda: listens(port))
        answer = ask(lonely)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert not is_healthy(lonely)
        assert lonely.page("api")["requests_shed"] == 1


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_tcp_transport(runtime_dir: Path) -> None:
    ports = [free_port() for _ in range(2)]
    flags = [f"--{name}-endpoint=tcp://127.0.0.1:{port}" for name, port in zip(("input", "output"), ports, strict=True)]
    with running_engine(runtime_dir, *flags) as engine:
        assert ask(engine).status_code == 200
        assert engine.page("core").endpoints()["input"] == f"tcp://127.0.0.1:{ports[0]}"


def test_sigterm_ends_every_process_and_removes_the_sockets(runtime_dir: Path) -> None:
    with running_engine(runtime_dir) as engine:
        pids = [engine.page(role).header.pid for role in ("api", "core")]
        os.kill(engine.pid, signal.SIGTERM)
        eventually("the end of all", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
    assert not list(runtime_dir.glob("*.sock"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", "gpt-5"], "There is no model 'gpt-5'"),
        (["--port", "0"], "--port must be between 1 and 65535"),
        (["--prot", "1"], "unrecognized arguments"),
        (["--max-num-seqs", "many"], "--max-num-seqs takes a whole number"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "must be at least --max-num-seqs"),
        (["--input-endpoint", "udp://x"], "must begin with ipc:// or tcp://"),
        (["--input-endpoint", "ipc://" + "x" * 200], "at most 107 bytes"),
        (["--device", "cuda"], "sees no CUDA device"),
        (["--output-endpoint", "tcp://203.0.113.1:1"], "cannot bind the sockets"),
        (["--interface", "eno77"], "--interface eno77: there is no such interface, only"),
        (["--bind-address", "203.0.113.9"], "--bind-address 203.0.113.9: cannot be bound here"),
        (["--bind-address", "127.0.0.1", "--interface", "lo"], "give one of them"),
        (["--data-parallel-size", "9"], "--data-parallel-size must be between 1 and 8"),
        (["--cpu-bind", "all"], "--cpu-bind takes CPUs such as"),
        (["--cpu-bind", "99999"], "CPU 99999 is not among those this process may use"),
        (["--cpu-bind", "numa:77"], "there is no such node"),
        (["--tls-cert", "/nowhere.pem"], "--tls-cert and --tls-key go together"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.key"], "cannot be used"),
        (["--request-timeout", "-1"], "--request-timeout must be between 0 and"),
    ],
)
def test_bad_flags_are_one_sentence_and_status_2(runtime_dir: Path, flags: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "instrumented_engine", "--port", str(free_port()), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_one_sentence(runtime_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "instrumented_engine", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("instrumented_engine.core.__main__", ("opentelemetry", "prometheus_client", "fastapi", "pydantic")),
        # FastAPI itself imports OpenTelemetry's API where that is installed; the SDK is what costs.
        ("instrumented_engine.api.__main__", ("opentelemetry.sdk", "prometheus_client")),
    ],
)
def test_no_engine_process_imports_telemetry_libraries(module: str, banned: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in sys.modules if m.startswith({banned})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_api_process_does_not_load_torch() -> None:
    code = "import sys, instrumented_engine.api.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
