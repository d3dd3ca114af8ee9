"""What the drills of failures inside the engine share, on real processes; CI runs the drills themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from alerts import inside
from enginescope.drill import DrillError
from enginescope.services import Plan, Ports, parts
from enginescope.stack import FAULTS, Stack
from telemetry.layout import CORE
from tests.conftest import eventually

CORE_PAGE = """
import sys, time
from pathlib import Path
from telemetry.layout import CORE
from telemetry.scoreboard import Writer

writer = Writer(Path(sys.argv[1]), CORE)
print("ready", flush=True)
while True:
    writer["steps"] += 1
    time.sleep(0.005)
"""


@contextmanager
def core(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CORE_PAGE, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def stack(directory: Path, engine: int, *offers: str) -> Stack:
    return Stack(os.getpid(), "chat", {"engine": 1, "sidecar": 1}, {"engine": engine}, str(directory), offers=offers)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_is_found_by_the_role_of_its_page(tmp_path: Path) -> None:
    with core(tmp_path) as running:
        assert inside.process_pid(stack(tmp_path, running.pid), CORE.role) == running.pid
        with pytest.raises(DrillError, match="no API process of the stack's engine"):
            inside.process_pid(stack(tmp_path, running.pid), "api")
        with pytest.raises(DrillError, match="no core process of the stack's engine"):
            inside.process_pid(stack(tmp_path, os.getpid()), CORE.role)


def test_a_stopped_process_goes_on_after_an_interrupt(tmp_path: Path) -> None:
    with core(tmp_path) as running:
        with suppress(KeyboardInterrupt), inside.stopped(running.pid):
            eventually("the stop", lambda: state(running.pid) == "T")
            raise KeyboardInterrupt
        eventually("the process to go on", lambda: state(running.pid) != "T")


def test_a_throttled_process_runs_now_and_then_and_freely_afterwards(tmp_path: Path) -> None:
    with core(tmp_path) as running:
        with inside.throttled(running.pid, 0.2, 0.01):
            for _ in range(3):
                eventually("a stop", lambda: state(running.pid) == "T")
                eventually("a run", lambda: state(running.pid) != "T")
        eventually("the process to go on", lambda: state(running.pid) != "T")


def test_a_fault_is_asked_for_and_taken_back(tmp_path: Path) -> None:
    offering = stack(tmp_path, 1, FAULTS)
    offering.faults_dir.mkdir()
    with suppress(KeyboardInterrupt), inside.triggered(offering, "stall_core", "9"):
        assert (offering.faults_dir / "stall_core").read_text() == "9"
        (offering.faults_dir / "stall_core.now").touch()
        raise KeyboardInterrupt
    assert list(offering.faults_dir.iterdir()) == []


def test_without_hooks_for_faults_a_drill_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match="enginescope up --faults"), inside.triggered(stack(tmp_path, 1), "block_loop"):
        pass


@pytest.mark.parametrize("faults", [False, True])
def test_the_engine_is_started_with_hooks_only_when_asked(tmp_path: Path, *, faults: bool) -> None:
    plan = Plan("chat", "dummy", Ports(), tmp_path, tmp_path, paging=False, faults=faults)
    engine = next(part for part in parts(plan) if part.name == "engine")
    expected = {"ENGINESCOPE_FAULTS_DIR": str(tmp_path / FAULTS)} if faults else {}
    assert {name: value for name, value in engine.environment.items() if "FAULTS" in name} == expected
