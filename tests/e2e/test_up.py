"""The whole stack as a newcomer starts it, on free ports, with the dummy model."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginescope import toolchain
from enginescope.probe import ProbeError, get, is_ready, samples, total
from enginescope.services import Ports
from enginescope.stack import MARKER, Stack, StackError
from telemetry.stages import STAGES
from tests.conftest import eventually, free_port

UP = (sys.executable, "-m", "enginescope", "up", "--model", "dummy", "--rate", "5")
PAGING = not toolchain.missing()


def port_flags(ports: Ports) -> list[str]:
    return [part for name, port in vars(ports).items() for part in (f"--{name.replace('_', '-')}-port", str(port))]


def free_ports() -> Ports:
    return Ports(*(free_port() for _ in range(6)))


@contextmanager
def stack(runtime_dir: Path, *flags: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Stack]]:
    """A running stack; every process of it is gone afterwards, however the test ends."""
    ports = free_ports()
    command = [*UP, *port_flags(ports), *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment
    )
    try:
        yield process, eventually("the marker", lambda: load(runtime_dir, process), 120)
    finally:
        family = descendants(process.pid)
        process.terminate()
        output, _ = process.communicate(timeout=20)
        sys.stderr.write(output)
        for member in family:
            if member.is_running():
                member.kill()


def load(runtime_dir: Path, process: subprocess.Popen[str]) -> Stack | None:
    assert process.poll() is None, "up ended before it was ready"
    try:
        return Stack.load(runtime_dir)
    except StackError:
        return None


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_bounded_run_accounts_for_every_request(runtime_dir: Path) -> None:
    command = [*UP, *port_flags(free_ports()), "--for", "6", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert all(summary["ready"].values())
    assert {"engine", "span_exporter", "sidecar", "page_receiver"} <= set(summary["ready"])
    assert summary["requests"]["sent"] == summary["requests"]["ok"] > 0
    assert summary["spans"] == {stage.span_name: summary["requests"]["ok"] for stage in STAGES}
    assert summary["pages"] == 0
    if PAGING:
        assert 100 < summary["series"] < 650
    assert not (runtime_dir / MARKER).exists()


def test_stops_everything_within_five_seconds_after_any_child_was_killed(runtime_dir: Path) -> None:
    with stack(runtime_dir) as (process, running):
        family = descendants(process.pid)
        names = {" ".join(member.cmdline()) for member in family}
        assert any("instrumented_engine.core" in name for name in names)
        api = next(p for p in family if "instrumented_engine.api" in " ".join(p.cmdline()))
        api.suspend()  # a stopped process would outlive a polite signal
        for name in ("engine", "sidecar", "page_receiver"):
            os.kill(running.pids[name], signal.SIGKILL)
        keeper = next(p for p in family if p.ppid() == process.pid)
        keeper.kill()
        time.sleep(0.5)
        family += descendants(process.pid)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(10)
        assert time.monotonic() - started < 5
        assert alive(family) == []


def test_a_killed_engine_is_started_again_and_the_sidecar_sees_it(runtime_dir: Path) -> None:
    with stack(runtime_dir) as (_, running):
        port = running.ports["sidecar"]
        eventually("the engine to be seen", lambda: engine_up(port) == 1)
        found = total(samples(port), "enginescope_engine_found_total") or 0
        os.killpg(running.pids["engine"], signal.SIGKILL)
        eventually("the death to be seen", lambda: engine_up(port) == 0)
        eventually("the next engine", lambda: is_ready(running.ports["engine"], "/health"), 60)
        eventually("it to be seen", lambda: engine_up(port) == 1)
        assert (total(samples(port), "enginescope_engine_found_total") or 0) > found
        fresh = eventually("the marker", lambda: changed(runtime_dir, running))
        assert os.getpgid(fresh.pids["engine"]) == fresh.pids["engine"]


def changed(runtime_dir: Path, before: Stack) -> Stack | None:
    now = Stack.load(runtime_dir)
    return now if now.pids["engine"] not in (0, before.pids["engine"]) else None


def engine_up(port: int) -> float | None:
    try:
        return total(samples(port), "enginescope_engine_up")
    except ProbeError:
        return None


def test_a_held_process_stays_dead(runtime_dir: Path) -> None:
    with stack(runtime_dir) as (_, running), running.held("page_receiver"):
        port = running.ports["page_receiver"]
        os.kill(running.pids["page_receiver"], signal.SIGKILL)
        eventually("its end", lambda: not is_ready(port, "/healthz"))
        time.sleep(2)  # longer than the first restart pause
        assert not is_ready(port, "/healthz")
        running.release("page_receiver")
        eventually("its return", lambda: is_ready(port, "/healthz"))


def fails(*flags: str, **environment: str) -> str:
    command = [*UP, *port_flags(free_ports()), *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_busy_port_is_one_sentence(runtime_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"in use on 127.0.0.1: port {port}" in fails("--sidecar-port", str(port))


def test_a_missing_model_is_one_sentence(runtime_dir: Path) -> None:
    assert "There is no model '/no/such.gguf'" in fails("--model", "/no/such.gguf")


def test_a_bad_engine_flag_is_one_sentence(runtime_dir: Path) -> None:
    assert "--max-num-seqs must be between" in fails("--engine-flag=--max-num-seqs=0")


def test_a_second_stack_in_the_same_place_is_refused(runtime_dir: Path) -> None:
    with stack(runtime_dir):
        assert "already running" in fails()


def test_without_prometheus_it_goes_on_without_paging(runtime_dir: Path, tmp_path: Path) -> None:
    nowhere = {"PATH": "/nonexistent", "ENGINESCOPE_TOOLS": str(tmp_path)}
    command = [*UP, *port_flags(free_ports()), "--for", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | nowhere)
    assert done.returncode == 0, done.stderr
    assert "going on without paging" in done.stderr
    assert "prometheus" not in json.loads(done.stdout)["ready"]


def test_commands_without_a_stack_say_so(runtime_dir: Path) -> None:
    for arguments, sentence in (
        (("drill", "engine_down"), "no running stack"),
        (("trace", "last"), "no engine has a page"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "enginescope", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode != 0
        assert sentence in done.stderr


@pytest.mark.skipif(not PAGING, reason="needs Prometheus and Alertmanager (make install)")
def test_prometheus_has_exemplars_that_lead_to_traces(runtime_dir: Path) -> None:
    with stack(runtime_dir) as (_, running):
        port = running.ports["prometheus"]
        now = int(time.time())
        path = (
            f"/api/v1/query_exemplars?query=enginescope_stage_duration_seconds_bucket&start={now - 60}&end={now + 600}"
        )

        def exemplar() -> str | None:
            found = json.loads(get(port, path))["data"]
            return next((e["labels"]["trace_id"] for series in found for e in series["exemplars"]), None)

        trace_id = eventually("an exemplar", exemplar, 60)
        spans = eventually("its trace", lambda: json.loads(get(running.ports["otlp"], f"/api/traces/{trace_id}")))
        assert len(spans) == 7
        server = next(span for span in spans if span["kind"] == "SPAN_KIND_SERVER")
        assert 0 <= server["attributes"]["enginescope.accept_queue.max"] <= 2048  # from the sidecar's page


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_network_of_its_own_has_the_engine_and_a_peer(runtime_dir: Path) -> None:
    visit = (
        "import sys; from enginescope.isolation import *; from enginescope.probe import get; "
        "from enginescope.stack import Stack; stack = Stack.load(sys.argv[1]); enter(stack)\n"
        "get(stack.ports['engine'], '/health')\n"
        "with in_peer(stack): get(stack.ports['engine'], '/health', host=STACK_ADDRESS)"
    )
    with stack(runtime_dir, "--network-namespace") as (_, running):
        assert not is_ready(running.ports["engine"], "/health"), "the host sees nothing of it"
        done = subprocess.run(
            [sys.executable, "-c", visit, str(runtime_dir)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
