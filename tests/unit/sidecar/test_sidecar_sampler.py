from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.clock import Clock
from sidecar.collectors import NotVisibleError
from sidecar.kernel.netlink import DiagSocket
from sidecar.metrics import families
from sidecar.sampler import Sampler
from sidecar.snapshot import Snapshot
from sidecar.target import EngineSpec, Member
from telemetry.layout import API, CORE
from telemetry.scoreboard import Writer
from tests.unit.sidecar.oracle import error, fake_opener


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.now, lambda: int(self.now * 1e9), lambda: 0.0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def sampler(time: Time, listener: socket.socket, tmp_path: Path) -> Iterator[Sampler]:
    spec = EngineSpec("demo", pid=os.getppid())
    sampler = Sampler(spec, tmp_path, clock=time.clock())
    yield sampler
    sampler.close()


def step(sampler: Sampler, time: Time, seconds: float = 1.0) -> Snapshot:
    time.now += seconds
    sampler.tick()
    return sampler.snapshot()


def test_a_failing_collector_costs_its_success_and_nothing_else(
    sampler: Sampler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    before = step(sampler, time)
    assert all(run.success for run in before.collectors.values())
    for name in before.collectors:
        owner, method = {
            "processes": (sampler._processes, "collect"),
            "own": (sampler._processes, "read_own"),
            "backlog": (sampler._backlog, "look"),
            "fds": (sampler._details, "_collect_fds"),
            "threads": (sampler._details, "_collect_threads"),
            "network": (sampler._details, "_collect_network"),
            "own_page": (sampler, "_write_own_page"),
            "judge": (sampler._faults, "look"),
        }.get(name, (sampler, f"_collect_{name}"))
        monkeypatch.setattr(owner, method, fail)
        after = step(sampler, time)
        assert [other for other, run in after.collectors.items() if not run.success] == [name]
        assert {family.name for family in families(after, "1")} >= {"enginescope_engine_up"}
        monkeypatch.undo()
        assert all(run.success for run in step(sampler, time).collectors.values())


def test_a_kernel_that_refuses_leaves_sockets_absent_not_zero(time: Time, tmp_path: Path) -> None:
    diag = DiagSocket(fake_opener(lambda _: [error(1)]))
    sampler = Sampler(EngineSpec("demo", port=80), tmp_path, clock=time.clock(), diag=diag)
    snapshot = step(sampler, time)
    assert not snapshot.collectors["listeners"].success
    assert (snapshot.listeners, snapshot.connections, snapshot.bound) == ((), (), ())
    assert snapshot.collectors["processes"].success
    sampler.close()


def test_descriptors_of_the_sidecar_do_not_grow_over_engine_restarts(
    sampler: Sampler, time: Time, tmp_path: Path
) -> None:
    counts = []
    for generation in range(12):
        writers = [Writer(tmp_path, layout, generation=generation) for layout in (API, CORE)]
        step(sampler, time)
        for writer in writers:
            writer.close()
            if generation % 2:
                writer.path.unlink()
        step(sampler, time)
        del writers
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert (counts[-2], counts[-1]) <= (counts[2], counts[1])


def test_the_longest_gap_of_the_last_minute_is_told_and_forgotten(sampler: Sampler, time: Time) -> None:
    step(sampler, time, 0.1)
    step(sampler, time, 2.5)
    assert step(sampler, time, 0.1).loop_gap_seconds == pytest.approx(2.5)
    for _ in range(600):
        time.now += 0.1
        sampler._note_gap(time.now)
    assert step(sampler, time, 0.1).loop_gap_seconds == pytest.approx(0.1)


def test_long_gaps_are_summed_and_short_ones_are_not(sampler: Sampler, time: Time) -> None:
    step(sampler, time, 0.1)
    before = step(sampler, time, 0.5).starved_seconds
    step(sampler, time, 2.5)
    step(sampler, time, 0.7)
    assert step(sampler, time, 0.1).starved_seconds - before == pytest.approx(3.2)


def test_a_starved_sidecar_forgets_how_long_output_has_waited(sampler: Sampler, time: Time, tmp_path: Path) -> None:
    api, core = Writer(tmp_path, API), Writer(tmp_path, CORE)
    core["output_messages_sent"] = 4
    step(sampler, time)
    for _ in range(10):
        time.now += 0.1
        sampler.tick()
    assert step(sampler, time, 0.1).output_unreceived_age == pytest.approx(1.1)
    snapshot = step(sampler, time, 5.0)
    assert (snapshot.output_unreceived, snapshot.output_unreceived_age) == (4, 0.0)
    api.close()
    core.close()


def test_the_loop_stops_when_told_and_takes_its_first_snapshot_at_once(tmp_path: Path) -> None:
    sampler = Sampler(EngineSpec("demo", port=1), tmp_path)
    stop = threading.Event()
    thread = threading.Thread(target=sampler.run, args=(stop,))
    thread.start()
    for _ in range(500):
        if sampler.latest is not None or stop.wait(0.01):
            break
    stop.set()
    thread.join(2)
    assert not thread.is_alive()
    assert sampler.latest is not None


def test_a_dead_page_counts_until_another_process_takes_its_place(sampler: Sampler, time: Time, tmp_path: Path) -> None:
    pages = [Writer(tmp_path, CORE, name) for name in ("core-0", "core-1")]
    step(sampler, time)
    for writer in pages:
        writer.close()
    for living, dead in ((0, {"core"}), (1, {"core"}), (2, set())):
        step(sampler, time)
        assert sampler._pages.dead_roles({"core": living}) == dead


def test_counters_of_the_namespace_by_another_process_when_one_is_just_gone(
    sampler: Sampler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    step(sampler, time)
    gone, here = Member(2**22 + 1, 1, "worker"), Member(os.getpid(), 1, "api")
    for members in ((gone, here), (gone,)):  # the latter in our own namespace
        monkeypatch.setattr(sampler._target, "members", members)
        assert "ActiveOpens" in sampler._collect_netns()
    sampler._namespace.is_ours = False
    with pytest.raises(NotVisibleError):
        sampler._collect_netns()
