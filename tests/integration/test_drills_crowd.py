"""Drills with crowds of clients, on a real process that accepts and keeps them, and that all of it is mended."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from alerts import crowd
from alerts.close_wait_leak import drill as close_wait_leak
from alerts.connection_growth import drill as connection_growth
from alerts.connections_near_limit import drill as connections_near_limit
from alerts.fd_exhausted import drill as fd_exhausted
from alerts.fd_growth import drill as fd_growth
from enginescope import drill
from enginescope.drills import batch, run
from enginescope.probe import ProbeError, is_ready
from enginescope.stack import Stack
from tests.integration.small_stack import HOST, api, connected, rows, serving, soft_limit, state, until

API = f"""
import asyncio, sys
from pathlib import Path
from telemetry.layout import API
from telemetry.scoreboard import Writer

async def serve(reader, writer):
    if await reader.read(4096):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "{HOST}", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

writer = Writer(Path(sys.argv[1]), API)
asyncio.run(main())
"""


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class FakePrometheus:
    """Answers one number to every query."""

    value: float | None = None

    def answer(self, _: str) -> str:
        result = [] if self.value is None else [{"value": [0, str(self.value)]}]
        return json.dumps({"data": {"result": result}})


@pytest.fixture
def prometheus() -> FakePrometheus:
    return FakePrometheus()


@pytest.fixture
def stack(tmp_path: Path, prometheus: FakePrometheus) -> Iterator[Stack]:
    with ExitStack() as started:
        running_api, port = started.enter_context(api(API, tmp_path))

        def metrics(_: str) -> str:
            labels = f'port="{port}",role="http"'
            limit = soft_limit(running_api.pid)
            return (
                f'enginescope_connections{{{labels},state="established"}} {connected(port)}\n'
                f"enginescope_connections_limit{{{labels}}} {limit}\n"
                f'enginescope_close_wait_sockets{{{labels},kind="owned"}} {connected(port, "08")}\n'
                f'enginescope_process_open_fds{{process="api"}} {crowd.open_files(running_api.pid)}\n'
                f'enginescope_process_max_fds{{process="api"}} {limit}\n'
            )

        ports = {"engine": port}
        ports["sidecar"] = started.enter_context(serving(metrics))
        ports["prometheus"] = started.enter_context(serving(prometheus.answer))
        yield Stack(os.getpid(), "chat", ports, {"engine": running_api.pid}, str(tmp_path), time_scale=0.001)


def test_the_limit_is_reached_and_put_back(stack: Stack) -> None:
    pid, port = stack.pids["engine"], stack.ports["engine"]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert not fd_exhausted.evidence(stack)
    with fd_exhausted.inject(stack):
        until(lambda: crowd.open_files(pid) == soft_limit(pid))
        assert soft_limit(pid) < before[0]
        assert fd_exhausted.evidence(stack)
        assert not is_ready(port, "/health")
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == before
    assert is_ready(port, "/health")
    until(lambda: connected(port) == 0)


def test_connections_come_near_the_limit_without_reaching_it(stack: Stack) -> None:
    pid, port = stack.pids["engine"], stack.ports["engine"]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert not connections_near_limit.evidence(stack)
    with connections_near_limit.inject(stack):
        assert 0.85 < connected(port) / soft_limit(pid) < 0.9
        assert connections_near_limit.evidence(stack)
        assert is_ready(port, "/health")
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == before
    until(lambda: connected(port) == 0)


def test_the_stopped_process_owns_what_its_clients_closed(stack: Stack) -> None:
    pid, port = stack.pids["engine"], stack.ports["engine"]
    assert not close_wait_leak.evidence(stack)
    with close_wait_leak.inject(stack):
        assert state(pid) == "T"
        until(lambda: connected(port, "08") == 64)
        owned = [row for row in rows(port) if row[3] == "08" and int(row[9])]  # those have an inode
        assert len(owned) >= 32  # the drill waits for half of its clients to be accepted
        assert close_wait_leak.evidence(stack)
    assert state(pid) != "T"
    until(lambda: connected(port, "08") == 0)


@pytest.mark.parametrize("module", [fd_exhausted, connections_near_limit, close_wait_leak])
def test_an_interrupt_mends(stack: Stack, module: drill.Drill) -> None:
    pid, before = stack.pids["engine"], soft_limit(stack.pids["engine"])
    with pytest.raises(KeyboardInterrupt), module.inject(stack):
        raise KeyboardInterrupt
    assert (soft_limit(pid), state(pid) == "T") == (before, False)
    until(lambda: connected(stack.ports["engine"]) == 0)


def test_a_process_that_dies_meanwhile_leaves_nothing_to_put_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "HEALTHY_SECONDS", 0.2)
    pid = stack.pids["engine"]
    with pytest.raises(drill.DrillError, match="did not answer /health"), fd_exhausted.inject(stack):
        _kill(pid)


def test_a_limit_that_may_not_be_set_is_one_sentence() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = pytest.raises(drill.DrillError, match=f"cannot set the open-files limit of process {os.getpid()} to ")
    with refused, crowd.soft_limit(os.getpid(), hard + 1):
        pass


def test_a_process_that_does_not_accept_is_one_sentence(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(close_wait_leak, "_ACCEPT_SECONDS", 0.2)
    monkeypatch.setattr(close_wait_leak, "open_files", lambda _: 10)
    with pytest.raises(drill.DrillError, match="did not accept 64 connections"), close_wait_leak.inject(stack):
        pass
    assert state(stack.pids["engine"]) != "T"


def test_connections_grow_on_the_curve_at_the_pace_of_the_rules(stack: Stack) -> None:
    port, begin = stack.ports["engine"], time.monotonic()
    with connection_growth.inject(stack):
        until(lambda: connected(port) >= 500)
        seconds = time.monotonic() - begin
    until(lambda: connected(port) == 0)
    assert connection_growth.curve(0) == 50
    assert connection_growth.curve(1800) == connection_growth.curve(9999) == 2000
    # 500 of them come after 19 minutes, a thousand times faster; a busy machine may be late.
    assert 1 < seconds < 5


def test_growth_stops_below_the_limit(stack: Stack) -> None:
    with crowd.soft_limit(stack.pids["engine"], 200), connection_growth.inject(stack):
        until(lambda: connected(stack.ports["engine"]) == 160)
        time.sleep(0.3)
        assert connected(stack.ports["engine"]) == 160


def test_files_leak_at_the_pace_of_the_rules(stack: Stack) -> None:
    pid = stack.pids["engine"]
    before = crowd.open_files(pid)
    with fd_growth.inject(stack):
        until(lambda: crowd.open_files(pid) >= before + 100)
    until(lambda: crowd.open_files(pid) == before)


@pytest.mark.parametrize(("module", "enough"), [(connection_growth, 30), (fd_growth, 50)])
def test_growth_is_evident_when_the_rules_own_number_says_so(
    stack: Stack, prometheus: FakePrometheus, module: drill.Drill, enough: int
) -> None:
    assert not module.evidence(stack)
    prometheus.value = enough
    assert module.evidence(stack)


@pytest.mark.parametrize("module", [connection_growth, fd_growth])
def test_growth_that_nobody_would_notice_is_not_begun(
    stack: Stack, prometheus: FakePrometheus, module: drill.Drill
) -> None:
    prometheus.value = 5000.0
    shipped = msgspec.structs.replace(stack, time_scale=1.0)
    with pytest.raises(ProbeError, match=r"was at 5000 within the last \d+ minutes"), module.inject(shipped):
        pass


def test_a_client_that_is_refused_ends_the_drill(stack: Stack) -> None:
    with contextlib.closing(socket.create_server((HOST, 0))) as closed:
        port = closed.getsockname()[1]
    refused = pytest.raises(drill.DrillError, match=f"connection 1 to port {port} failed")
    with refused, crowd.growing_crowd(port, 10, lambda _: 5.0):
        time.sleep(0.5)


def test_the_pace_of_the_rules(stack: Stack) -> None:
    assert run.extra_seconds(fd_growth, stack) == pytest.approx(3.0)
    assert run.extra_seconds(fd_exhausted, stack) == 0


@pytest.mark.parametrize(("scale", "asked"), [(1.0, []), (1.0, ["fd_growth"]), (0.05, [])])
def test_all_leaves_out_what_is_slow_and_says_so(stack: Stack, scale: float, asked: list[str]) -> None:
    stack = msgspec.structs.replace(stack, time_scale=scale)
    skipped = batch.unfit(batch.drill_names(), ["all", *asked], stack)
    slow = {name for name, why in skipped.items() if why.startswith("with these rules it takes up to")}
    fit = set(batch.drill_names()) - set(skipped)
    assert "engine_down" in fit
    assert ("fd_growth" in fit) is bool(scale < 1 or asked)
    assert {"close_wait_leak", "connection_growth"} <= (fit if scale < 1 else slow)
    assert all(run.extra_seconds(run.load(name), stack) > batch.UNASKED_SECONDS for name in slow)
