"""What the drills do to real processes, and that they always mend it.

Small processes stand in for those of a stack: an API with a page and a listener, and groups that do nothing.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from alerts.catalogue import alerts
from alerts.engine_down import drill as engine_down
from alerts.sidecar_down import drill as sidecar_down
from alerts.tcp_backlog_full import drill as tcp_backlog_full
from alerts.watchdog import drill as watchdog
from enginescope import drill
from enginescope.drills import batch
from enginescope.probe import is_ready
from enginescope.stack import Stack, hold_file
from tests.integration.small_stack import HOST, api, depth, overflows, process, serving, state, until

BACKLOG = 16

API = f"""
import socket, sys, time
from pathlib import Path
from telemetry.layout import API
from telemetry.scoreboard import Writer

writer = Writer(Path(sys.argv[1]), API)
listener = socket.create_server(("{HOST}", 0), backlog={BACKLOG})
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(1)
        try:
            if connection.recv(4096):
                connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
        except OSError:
            pass
"""


def metrics_of(port: int) -> str:
    """The accept queue of one port as the sidecar shows it."""
    labels = f'{{port="{port}",role="http"}}'
    return (
        f"enginescope_listener_accept_queue_depth{labels} {depth(port)}\n"
        f"enginescope_listener_accept_queue_limit{labels} {BACKLOG}\n"
    )


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as started:
        running_api, port = started.enter_context(api(API, tmp_path))
        idle = {name: started.enter_context(process("sleep", "60")) for name in ("sidecar", "prometheus")}
        yield Stack(
            pid=os.getpid(),
            engine="chat",
            ports={"engine": port, "sidecar": started.enter_context(serving(lambda _: metrics_of(port)))},
            pids={"engine": running_api.pid, **{name: running.pid for name, running in idle.items()}},
            runtime_dir=str(tmp_path),
        )


def test_every_failure_has_a_drill() -> None:
    assert batch.drill_names() == [alert.name for alert in alerts()]


def test_an_unknown_drill_is_one_sentence(stack: Stack) -> None:
    with pytest.raises(drill.DrillError, match="there is no drill 'nonsense': choose all or one of close_wait_leak, "):
        batch.run_drills(["nonsense"], stack, print)


def test_the_queue_overflows_and_everything_is_mended(stack: Stack) -> None:
    pid, port, before = stack.pids["engine"], stack.ports["engine"], overflows()
    assert not tcp_backlog_full.evidence(stack)
    begin = time.time_ns()
    with tcp_backlog_full.inject(stack) as stamp:
        assert begin < stamp < time.time_ns()
        until(lambda: state(pid) == "T")
        until(lambda: depth(port) == BACKLOG + 1)
        until(lambda: tcp_backlog_full.evidence(stack))
        until(lambda: overflows() - before >= 64)
    assert state(pid) != "T"
    until(lambda: depth(port) == 0)
    assert is_ready(port, "/health")


def test_the_process_runs_again_after_an_interrupt(stack: Stack) -> None:
    with pytest.raises(KeyboardInterrupt), tcp_backlog_full.inject(stack):
        raise KeyboardInterrupt
    assert state(stack.pids["engine"]) != "T"


def test_the_process_runs_again_when_connecting_fails(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: errno.EADDRNOTAVAIL)
    with pytest.raises(drill.DrillError, match="Cannot assign requested address"), tcp_backlog_full.inject(stack):
        pass
    assert state(stack.pids["engine"]) != "T"


def test_a_low_limit_of_open_files_is_raised_and_put_back(stack: Stack) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = len(os.listdir("/proc/self/fd")) + 20  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        with tcp_backlog_full.inject(stack):
            until(lambda: tcp_backlog_full.evidence(stack))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_hard_limit_that_is_too_low_is_one_sentence(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 128))
    with pytest.raises(drill.DrillError, match="hard limit is 128"), tcp_backlog_full.inject(stack):
        pass
    assert state(stack.pids["engine"]) != "T"


def test_a_process_of_another_stack_is_left_alone(stack: Stack) -> None:
    other = Stack(stack.pid, "chat", stack.ports, {**stack.pids, "engine": os.getpid()}, stack.runtime_dir)
    with pytest.raises(drill.DrillError, match="no API process of the stack's engine"), tcp_backlog_full.inject(other):
        pass


@pytest.mark.parametrize("pids", [{}, {"prometheus": 0}, {"prometheus": 1}, {"prometheus": 2**22 + 1}])
def test_a_process_that_is_not_there_is_one_sentence(stack: Stack, pids: dict[str, int]) -> None:
    gone = Stack(stack.pid, "chat", stack.ports, pids, stack.runtime_dir)
    with pytest.raises(drill.DrillError, match="prometheus"):
        drill.signal_group(gone, "prometheus", signal.SIGSTOP)


@pytest.mark.parametrize(("module", "name"), [(engine_down, "engine"), (sidecar_down, "sidecar")])
def test_a_killed_process_is_held_until_the_end(
    stack: Stack, module: drill.Drill, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "HEALTHY_SECONDS", 0.2)  # nobody restarts the engine here
    hold = hold_file(Path(stack.runtime_dir), name)
    with ExitStack() as ended:
        if name == "engine":
            ended.enter_context(pytest.raises(drill.DrillError, match="did not answer /health"))
        with module.inject(stack):
            assert hold.exists()
            until(lambda: state(stack.pids[name]) == "Z")
    assert not hold.exists()


def test_a_held_process_is_released_after_an_interrupt(stack: Stack) -> None:
    with pytest.raises(KeyboardInterrupt), engine_down.inject(stack):
        raise KeyboardInterrupt
    assert not hold_file(Path(stack.runtime_dir), "engine").exists()


def test_prometheus_is_stopped_and_continued(stack: Stack) -> None:
    pid = stack.pids["prometheus"]
    with watchdog.inject(stack):
        until(lambda: state(pid) == "T")
    until(lambda: state(pid) == "S")


def test_sigterm_mends_like_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), batch.end_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
