"""The sidecar as a process against real sockets and processes on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telemetry.records import KernelSample
from telemetry.scoreboard import Liveness, Reader
from tests.integration.sidecar_harness import ROOT, Processes, Samples, Sidecar, Victim

Connect = Callable[[int, int], None]


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Begin connections to a port without waiting for them."""
    with contextlib.ExitStack() as opened:

        def begin(port: int, count: int) -> None:
            for _ in range(count):
                client = opened.enter_context(socket.socket())
                client.settimeout(0)
                client.connect_ex(("127.0.0.1", port))

        yield begin


def test_listener_overflow_is_what_the_kernel_says(processes: Processes, tmp_path: Path, connect: Connect) -> None:
    victim = Victim(processes)
    port = victim("listen(backlog=4)")
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path)
    labels = f"{{port={port},role=http}}"
    before = sidecar.wait(lambda seen: seen[f"listener_accept_queue_limit{labels}"] == 4)
    assert before[f"listener_drops_total{labels}"] == 0
    connect(port, 12)
    after = sidecar.wait(
        lambda seen: seen[f"listener_accept_queue_depth{labels}"] == 5 and seen[f"listener_drops_total{labels}"] >= 7
    )
    assert victim("truth()") == [[5, 4]]
    assert after["netns_listen_overflows_total"] - before["netns_listen_overflows_total"] >= 7
    bucket = f"listener_accept_queue_fill_ratio_bucket{{le=%s,port={port},role=http}}"
    assert after[bucket % "+Inf"] > after[bucket % "1.0"]
    established = f"connections{{port={port},role=http,state=established}}"
    sidecar.wait(lambda seen: seen[established] == 5)
    assert victim("accept_all()") == 5
    sidecar.wait(lambda seen: victim("accept_all()") >= 0 and seen[f"listener_accept_queue_depth{labels}"] == 0)


def test_reuseport_sockets_are_summed_and_the_fullest_counts(
    processes: Processes, tmp_path: Path, connect: Connect
) -> None:
    victim = Victim(processes)
    port = victim("listen(backlog=2, reuse=True)")
    victim(f"listen({port}, backlog=40, reuse=True)")
    victim(f"listen({port}, backlog=6, address='::1')")
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path)
    labels = f"{{port={port},role=http}}"
    sidecar.wait(lambda seen: seen[f"listener_accept_queue_limit{labels}"] == 48)
    connect(port, 24)
    seen = sidecar.wait(
        lambda seen: seen[f"listener_accept_queue_depth{labels}"] == sum(d for d, _ in victim("truth()"))
    )
    assert seen[f"listener_accept_queue_depth{labels}"] > 0


def test_the_next_engine_is_found_after_the_first_died(processes: Processes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path)
    listening = f"listener_up{{port={port},role=http}}"
    nothing = sidecar.wait(lambda seen: seen["engine_up"] == 0)
    assert nothing["engine_found_total"] == 0
    assert listening not in nothing
    cpu: list[float] = []
    for generation in (1, 2):
        victim = Victim(processes)
        victim(f"listen({port})")
        seen = sidecar.wait(lambda seen, generation=generation: seen["engine_found_total"] == generation)  # type: ignore[misc]
        seen = sidecar.wait(lambda seen: seen["engine_up"] == 1 and seen[listening] == 1)
        cpu.append(seen["process_cpu_seconds_total{process=engine}"])
        victim.kill()
        seen = sidecar.wait(lambda seen: seen["engine_up"] == 0 and seen[listening] == 0)
        assert seen["process_up{process=engine}"] == 0
        assert "process_threads{process=engine}" not in seen
    assert cpu[1] > cpu[0]


def test_a_listener_that_vanishes_while_the_process_lives(processes: Processes, tmp_path: Path) -> None:
    victim = Victim(processes)
    port = victim("listen()")
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path)
    sidecar.wait(lambda seen: seen["process_up{process=engine}"] == 1)
    victim("close_listener()")
    seen = sidecar.wait(lambda seen: seen[f"listener_up{{port={port},role=http}}"] == 0)
    assert (seen["engine_up"], seen["process_up{process=engine}"]) == (1, 1)


def test_pages_of_live_stopped_and_dead_processes(processes: Processes, tmp_path: Path) -> None:
    api, core = Victim(processes), Victim(processes)
    path = tmp_path / "input.sock"
    port = api("listen(backlog=9)")
    endpoints = {"http": f"127.0.0.1:{port}", "input": f"ipc://{path}"}
    api(f"queue_unix('{path}', 700)")
    api(f"page('{tmp_path}', 'api', {endpoints}, requests_ok=3, output_messages_received=10)")
    core(f"page('{tmp_path}', 'core', {{}}, output_messages_sent=14, kv_blocks_total=8, kv_blocks_used=3)")
    sidecar = Sidecar(processes, f"demo=pid:{api.process.pid}", tmp_path)
    seen = sidecar.wait(
        lambda seen: (
            seen["process_up{process=api}"] == seen["process_up{process=core}"] == 1
            and seen["output_unreceived_age_seconds"] > 0.5
            and seen["unix_receive_queue_bytes{role=input}"] == 700
        )
    )
    assert seen["output_unreceived_messages"] == 4
    assert seen["requests_total{outcome=ok}"] == 3
    assert seen["kv_cache_blocks{state=free}"] == 5
    assert seen[f"listener_up{{port={port},role=http}}"] == 1
    core.process.send_signal(signal.SIGSTOP)
    sidecar.wait(lambda seen: seen["process_state{process=core,state=stopped}"] == 1)
    wait_for_sample(tmp_path, sidecar, lambda sample: sample.frozen == 2 and sample.input_receive_bytes == 700)
    core.kill()
    seen = sidecar.wait(lambda seen: seen["process_up{process=core}"] == 0)
    assert seen["process_up{process=api}"] == seen["engine_up"] == 1
    assert "output_unreceived_messages" not in seen
    assert "requests_waiting" not in seen
    api.kill()
    seen = sidecar.wait(lambda seen: seen["engine_up"] == 0)
    assert seen["requests_total{outcome=ok}"] == 3


def wait_for_sample(directory: Path, sidecar: Sidecar, condition: object) -> None:
    assert callable(condition)
    reader = Reader(directory / f"sidecar-{sidecar.process.pid}.page")
    assert reader.liveness() is Liveness.ALIVE
    ring = reader.ring()
    deadline = time.monotonic() + 5
    samples: list[KernelSample] = []
    while time.monotonic() < deadline and not any(map(condition, samples)):
        samples += map(KernelSample.unpack, ring.drain())
        time.sleep(0.05)
    assert any(map(condition, samples)), samples[-1:]
    assert samples[-1].accept_queue_limit == 9
    assert reader["samples"] >= len(samples)
    reader.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_leaves_at_once_and_says_so_on_its_page(processes: Processes, tmp_path: Path, number: int) -> None:
    sidecar = Sidecar(processes, "demo=port:1", tmp_path)
    sidecar.wait(lambda seen: "engine_up" in seen)
    sidecar.process.send_signal(number)
    started = time.monotonic()
    assert sidecar.process.wait(5) == 0
    assert time.monotonic() - started < 1
    reader = Reader(tmp_path / f"sidecar-{sidecar.process.pid}.page")
    assert reader.liveness() is Liveness.EXITED
    reader.close()


def test_a_busy_port_and_bad_input_are_one_sentence_and_status_2(processes: Processes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, words in (
            (["--engine=demo=port:1", f"--listen=127.0.0.1:{port}"], "Address already in use"),
            (["--engine=demo"], "--engine takes NAME=port:8000"),
            (["--wrong"], "sidecar: "),
        ):
            process = processes.start("-m", "sidecar", f"--runtime-dir={tmp_path}", *flags)
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 2
            assert words in errors.splitlines()[-1]
            assert "Traceback" not in errors


def test_no_runtime_directory_costs_nothing_else(processes: Processes, tmp_path: Path) -> None:
    sidecar = Sidecar(processes, "demo=port:1", tmp_path / "absent")
    seen: Samples = sidecar.wait(lambda seen: seen["sidecar_collector_success{collector=own_page}"] == 1)
    assert not (tmp_path / "absent").exists()
    assert all(value == 1 for name, value in seen.items() if name.startswith("sidecar_collector_success"))


def test_the_sidecar_is_lean() -> None:
    heavy = {"fastapi", "pydantic", "rich", "typer", "torch", "zmq", "opentelemetry", "uvicorn", "yaml"}
    code = f"import sys, sidecar.__main__; print(sorted({heavy!r} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True, env=os.environ
    )
    assert loaded.stdout.strip() == "[]"
