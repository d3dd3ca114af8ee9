from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.facts import IoThreadSample, SwitchesSample
from sidecar.kernel.procfs import CLOCK_TICKS
from sidecar.target import Member
from sidecar.threads import PublishedThreads, ThreadTracker

OWN = Path("/proc/self/ns/pid").stat().st_ino


class Task:
    """/proc/7 with threads of our own making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "7" / "task"
        self.directory.mkdir(parents=True)
        self.switches(0, 0)

    def thread(self, number: int, name: str = "x", cpu: float = 0.0, state: str = "S", inner: int = 0) -> None:
        directory = self.directory / str(number)
        directory.mkdir(exist_ok=True)
        numbers = [1, *[0] * 9, int(cpu * CLOCK_TICKS), *[0] * 5, 1, 0, 100 + number, 0, 5]
        (directory / "stat").write_text(f"{number} ({name}) {state} {' '.join(map(str, numbers))}\n")
        (directory / "status").write_text(
            f"NSpid:\t{number}\t{inner or number}\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t1\n"
        )

    def end(self, number: int) -> None:
        for path in (self.directory / str(number)).iterdir():
            path.unlink()
        (self.directory / str(number)).rmdir()

    def switches(self, voluntary: int, involuntary: int) -> None:
        text = f"NSpid:\t7\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
        (self.root / "7" / "status").write_text(text)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


MEMBERS = [Member(7, 100, "core")]


def test_an_io_thread_that_died_while_its_process_lives(task: Task) -> None:
    tracker = ThreadTracker(task.root)
    pages = [PublishedThreads(7, OWN, {"main": 7, "output": 9}), PublishedThreads(8, OWN, {"main": 8})]
    task.thread(7, cpu=3)
    task.thread(9, cpu=0.5)
    tracker.collect(MEMBERS, pages, now=0)
    assert [(one.kind, one.up) for one in tracker.published] == [("main", True), ("output", True)]
    task.end(9)
    tracker.collect(MEMBERS, pages, now=1)
    assert tracker.published[1] == IoThreadSample("core", "output", 7, up=False)
    assert tracker.cpu_seconds == {"core": {"main": 3, "output": 0.5}}


def test_thread_ids_of_another_pid_namespace_are_translated(task: Task) -> None:
    tracker = ThreadTracker(task.root)
    page = PublishedThreads(7, OWN + 1, {"main": 1, "input": 2, "output": 3})
    task.thread(7, inner=1, cpu=2)
    task.thread(19, inner=2, cpu=1)
    tracker.collect(MEMBERS, [page], now=0)
    assert [one.up for one in tracker.published] == [True, True, False]
    task.end(19)
    tracker.collect(MEMBERS, [page], now=1)
    assert [one.up for one in tracker.published] == [True, False, False]
    assert tracker.cpu_seconds["core"] == {"main": 2, "input": 1}


def test_states_and_the_busiest_thread_of_a_scan(task: Task) -> None:
    tracker = ThreadTracker(task.root)
    task.thread(7, "main", cpu=100)
    task.thread(8, "a", state="D")
    task.thread(9, "b", state="T")
    tracker.collect(MEMBERS, [], now=0)
    (first,) = tracker.scanned
    assert (first.disk_sleep, first.stopped, first.busiest_ratio) == (1, 1, None)
    task.thread(7, "main", cpu=101)
    task.thread(10, "new", cpu=4)
    tracker.collect(MEMBERS, [], now=2)
    assert tracker.scanned == (first,)
    tracker.collect(MEMBERS, [], now=5)
    (second,) = tracker.scanned
    assert second.busiest_name == "new"
    assert second.busiest_ratio == pytest.approx(0.8)


def test_a_process_with_too_many_threads_is_left_out(task: Task) -> None:
    for number in range(201):
        task.thread(number)
    tracker = ThreadTracker(task.root)
    tracker.collect(MEMBERS, [], now=0)
    assert tracker.scanned == ()


def test_context_switches_never_go_back(task: Task) -> None:
    tracker = ThreadTracker(task.root)
    task.switches(50, 5)
    tracker.collect(MEMBERS, [], now=0)
    task.switches(3, 1)
    tracker.collect([Member(7, 900, "core")], [], now=1)
    assert tracker.switches == (SwitchesSample("core", 53, 6),)
    tracker.collect([Member(8, 1, "core")], [], now=2)
    assert tracker.switches == (SwitchesSample("core", 53, 6),)
