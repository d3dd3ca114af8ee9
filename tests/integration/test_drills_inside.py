"""What the drills of failures inside the engine share, on real processes; CI runs the drills themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from alerts import inside
from alerts.gpu_idle_with_work import drill as gpu_idle_with_work
from alerts.step_stalled import drill as step_stalled
from alerts.worker_stalled import drill as worker_stalled
from enginescope.drill import DrillError
from enginescope.drills import needs
from enginescope.services import Plan, Ports, parts
from enginescope.stack import FAULTS, Stack
from telemetry.layout import CORE
from tests.conftest import eventually, free_port

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

WORKER = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"VLLM::Worker_TP", 0, 0, 0)  # PR_SET_NAME
print("ready", flush=True)
time.sleep(60)
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


class Answers(BaseHTTPRequestHandler):
    """Refuses every second request."""

    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if self.asked % 2 else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def engine() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        yield server.server_address[1]
        server.shutdown()


def test_clients_ask_again_when_they_were_answered_or_refused(tmp_path: Path) -> None:
    with engine() as port:
        asking = Stack(os.getpid(), "chat", {"engine": port}, {}, str(tmp_path))
        before, threads = Answers.asked, threading.active_count()
        with inside.asking(asking, 3):
            eventually("many requests", lambda: Answers.asked >= before + 12)
        eventually("the clients to leave", lambda: threading.active_count() <= threads)


def test_clients_of_an_engine_that_is_away_go_on_asking(tmp_path: Path) -> None:
    with inside.asking(Stack(os.getpid(), "chat", {"engine": free_port()}, {}, str(tmp_path)), 2):
        pass
    with pytest.raises(OSError, match="refused"):
        inside.send_request(free_port(), inside.SHORT)


def test_an_answer_is_read_to_its_end() -> None:
    with engine() as port:
        lines = {inside.read_answer(port, inside.SHORT, threading.Event()) for _ in range(2)}
    assert {line.split()[1] for line in lines} == {"200", "503"}


def test_what_nobody_measures_is_no_number(tmp_path: Path) -> None:
    away = Stack(os.getpid(), "chat", {"sidecar": free_port()}, {}, str(tmp_path))
    assert inside.number(away, "steps_total") is None
    assert not inside.judged(away, "step_stalled")


def test_waiting_for_what_does_not_come_is_one_sentence() -> None:
    with pytest.raises(DrillError, match=r"^the moon did not fall within 0 s$"):
        inside.wait_until(lambda: False, "the moon did not fall", 0.2)


def test_a_worker_is_found_by_its_title_and_group() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, start_new_session=True) as worker:
        try:
            assert worker.stdout is not None
            worker.stdout.readline()
            assert worker_stalled.worker_pid(worker.pid) == worker.pid
            with pytest.raises(DrillError, match="VLLM::Worker"):
                worker_stalled.worker_pid(os.getpgid(0))
        finally:
            worker.kill()


def test_drills_for_other_machines_are_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.NEEDS, "gpu", ("a GPU", lambda _: False))
    plain = stack(tmp_path, 1)
    assert needs.lacking(gpu_idle_with_work, plain) == "needs a GPU"
    assert needs.lacking(worker_stalled, plain) == "needs vLLM"
    assert needs.lacking(step_stalled, plain) == "needs a stack started with --faults"
    assert needs.lacking(step_stalled, stack(tmp_path, 1, FAULTS)) is None


def test_a_repeated_fault_is_there_again_after_it_was_met(tmp_path: Path) -> None:
    offering = stack(tmp_path, 1, FAULTS)
    offering.faults_dir.mkdir()
    file = offering.faults_dir / "encode"
    with inside.repeated(offering, "encode", "0.05"):
        for _ in range(3):
            eventually("the fault", file.exists)
            file.unlink()
    assert list(offering.faults_dir.iterdir()) == []
