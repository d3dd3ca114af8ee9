"""How drills follow each other: what is skipped, what may page, and who waits for whom.

The page receiver is real; the drills post the pages that Alertmanager would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from rich.console import Console

from alerts.catalogue import alert_name, alerts
from alerts.inhibition import holds_back
from enginescope.drill import DrillError
from enginescope.drills import batch, command, needs, report, run
from enginescope.drills.own_stack import own_stack
from enginescope.drills.result import DrillResult
from enginescope.page_receiver import PageReceiver, PageReceiverSettings
from enginescope.stack import Stack

ALERTS = {alert.name: alert for alert in alerts()}


class World:
    """A page receiver, and drills that page as told."""

    def __init__(self, port: int, folder: Path) -> None:
        self.stack = Stack(os.getpid(), "chat", {"page_receiver": port}, {}, str(folder), time_scale=0.05)
        self.stack.save()
        self.drills: dict[str, ToldDrill] = {}
        self.order: list[str] = []

    def page(self, name: str, status: str = "firing", alert: str = "", **labels: str) -> None:
        failure = ALERTS[name]
        body = {
            "status": status,
            "labels": {"alertname": alert or failure.alert, "severity": failure.severity, "engine": "chat", **labels},
            "annotations": {"summary": "x", "runbook_url": f"https://example.com/{name}/runbook.md"},
            "startsAt": f"2026-01-01T00:00:{len(self.order):02}Z",
            "fingerprint": alert or name,
        }
        url = f"http://127.0.0.1:{self.stack.ports['page_receiver']}/webhook"
        httpx.post(url, json={"version": "4", "alerts": [body]}).raise_for_status()


class ToldDrill:
    """Its failure pages at once; ``also`` are the alerts that page with it."""

    __doc__ = "Breaks nothing."

    def __init__(self, world: World, name: str, also: tuple[str, ...] = (), **declared: Any) -> None:
        self._world, self._name, self._also, self._broken = world, name, also, False
        self.resolves = True
        for key, value in declared.items():
            setattr(self, key, value)
        world.drills[name] = self

    @contextmanager
    def inject(self, stack: Stack) -> Iterator[int]:
        self._world.order.append(self._name)
        self._broken, stamp = True, time.time_ns()
        self._world.page(self._name)
        for other in self._also:
            self._world.page(other)
        yield stamp
        self._broken = False
        if self.resolves:
            self._world.page(self._name, "resolved")

    def evidence(self, stack: Stack) -> bool:
        return self._broken


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with PageReceiver(PageReceiverSettings("127.0.0.1:0", deadman_timeout=600)) as receiver:
        made = World(receiver.port, tmp_path)
        monkeypatch.setattr(batch, "load", made.drills.__getitem__)
        monkeypatch.setattr(run, "load", made.drills.__getitem__)
        monkeypatch.setattr(batch, "drill_names", lambda: list(made.drills))
        yield made


def _results(world: World, *names: str) -> dict[str, DrillResult]:
    return {result.name: result for result in batch.run_drills(names, world.stack, lambda _: None)}


def test_every_drill_is_told_with_its_times(world: World) -> None:
    ToldDrill(world, "fd_exhausted")
    ToldDrill(world, "engine_down")
    results = _results(world, "all")
    assert [result.reason for result in results.values()] == [None, None]
    told = results["fd_exhausted"].as_dict()
    assert told["seconds_from_evidence_to_page"] == round(told["seconds_to_page"] - told["seconds_to_evidence"], 3)
    counts = report.summary(list(results.values()), 1.0)
    assert (counts["drilled"], counts["paged"], counts["failed"], counts["skipped"]) == (2, 2, 0, 0)


def test_what_the_stack_lacks_is_skipped_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.NEEDS, "gpu", ("a GPU", lambda _: False))
    ToldDrill(world, "fd_exhausted", NEEDS=("vllm", "gpu"))
    ToldDrill(world, "engine_down", NEEDS="vllm")
    results = _results(world, "all")
    assert results["fd_exhausted"].as_dict() == {"name": "fd_exhausted", "skipped": "needs vLLM and a GPU"}
    assert results["engine_down"].as_dict() == {"name": "engine_down", "skipped": "needs vLLM"}
    assert world.order == []
    offering = msgspec.structs.replace(world.stack, offers=("vllm",))
    offering.save()
    assert batch.run_drills(["engine_down"], offering, lambda _: None)[0].paged


def test_an_alert_that_is_held_back_must_not_page(world: World) -> None:
    ToldDrill(world, "engine_down", also=("fd_exhausted",))
    result = _results(world, "engine_down")["engine_down"]
    assert result.paged
    assert result.wrong_pages == ["FDExhausted"]
    assert result.reason == "FDExhausted paged too"


def test_a_page_with_a_declared_reason_is_right_and_any_other_wrong(world: World) -> None:
    declared = {"TCPBacklogFull": "A process without files accepts nobody."}
    ToldDrill(world, "fd_exhausted", also=("tcp_backlog_full", "close_wait_leak"), MAY_ALSO_PAGE=declared)
    assert _results(world, "all")["fd_exhausted"].wrong_pages == ["CloseWaitLeak"]


def test_pages_of_other_engines_and_earlier_ones_are_nobodys_fault(world: World) -> None:
    world.page("tcp_backlog_full")
    ToldDrill(world, "fd_exhausted")
    with_neighbour = world.drills["fd_exhausted"]
    with_neighbour._also = ()
    world.page("close_wait_leak", engine="neighbour")
    assert _results(world, "all")["fd_exhausted"].reason is None


def test_the_page_must_have_the_severity_of_its_rule(world: World) -> None:
    ToldDrill(world, "fd_exhausted")
    page = world.page
    world.page = lambda name, *args, **labels: page(name, *args, **{**labels, "severity": "info"})  # type: ignore[method-assign]
    reason = _results(world, "all")["fd_exhausted"].reason
    assert reason == "the page has severity 'info', the rule 'critical'"


def test_the_next_drill_begins_before_the_last_page_resolves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RESOLVED_SECONDS", 0.0)
    first = ToldDrill(world, "fd_growth")
    first.resolves = False
    ToldDrill(world, "tcp_backlog_full")
    results = _results(world, "fd_growth", "tcp_backlog_full")
    assert world.order == ["fd_growth", "tcp_backlog_full"]
    assert results["tcp_backlog_full"].reason is None
    assert results["fd_growth"].reason is not None
    assert results["fd_growth"].reason.startswith("FDGrowth had not resolved")


def test_what_may_page_with_an_earlier_drill_is_not_the_next_ones_fault(world: World) -> None:
    why = {"CloseWaitLeak": "They are the same connections."}
    ToldDrill(world, "fd_growth", MAY_ALSO_PAGE=why)
    ToldDrill(world, "tcp_backlog_full", also=("close_wait_leak",))
    assert _results(world, "fd_growth", "tcp_backlog_full")["tcp_backlog_full"].reason is None
    ToldDrill(world, "tcp_backlog_full", also=("close_wait_leak",))
    assert _results(world, "tcp_backlog_full")["tcp_backlog_full"].wrong_pages == ["CloseWaitLeak"]


def test_slow_failures_come_first() -> None:
    names = ["watchdog", "connection_growth", "engine_down", "fd_growth", "sidecar_down"]
    assert batch.in_order(names) == ["fd_growth", "connection_growth", "engine_down", "sidecar_down", "watchdog"]


@pytest.mark.parametrize(
    ("one", "other", "waits"),
    [
        ("tcp_backlog_full", "fd_growth", False),
        ("engine_down", "tcp_backlog_full", True),
        ("tcp_backlog_full", "sidecar_down", True),
        ("fd_exhausted", "fd_growth", True),
        ("fd_exhausted", "watchdog", True),
    ],
)
def test_drills_that_would_hide_each_others_end_wait(world: World, one: str, other: str, waits: bool) -> None:
    ToldDrill(world, one)
    ToldDrill(world, other, WHOLE_STACK=other == "watchdog")
    runs = [run.Run(name, world.stack, print) for name in (one, other)]
    assert batch.disturb(*runs) is batch.disturb(*reversed(runs)) is waits


def test_inhibition_is_read_from_the_configuration() -> None:
    assert holds_back(ALERTS["sidecar_down"], ALERTS["engine_down"])
    assert not holds_back(ALERTS["engine_down"], ALERTS["sidecar_down"])
    assert not holds_back(ALERTS["sidecar_down"], ALERTS["watchdog"])
    assert not holds_back(ALERTS["fd_growth"], ALERTS["fd_exhausted"])


def test_the_table_has_a_row_for_each_and_json_is_plain(world: World) -> None:
    results = [
        DrillResult("a", True, 1.0, 2.5, 10.0),
        DrillResult("b", reason="no B page came"),
        DrillResult("c", skipped="needs a GPU"),
    ]
    counts = report.summary(results, 61.0)
    assert counts["median_seconds_from_evidence_to_page"] == 1.5
    shown = report.table(results, counts)
    assert shown.row_count == 3
    assert list(shown.columns[-1].cells) == ["paged", "FAILED: no B page came", "skipped: needs a GPU"]
    assert shown.caption == "1 of 2 paged, 1 failed, 1 skipped; median from evidence to page 1.5 s; 61 s in all"
    json.dumps([result.as_dict() for result in results])


def test_names_of_failures_and_alerts_agree() -> None:
    assert {alert_name(name) for name in ALERTS} == {alert.alert for alert in ALERTS.values()}


def test_names_are_failures_or_decoys() -> None:
    assert command._sort_out(command.Wanted(["all", "slow_reader"])) == (["all"], ["slow_reader"])
    assert command._sort_out(command.Wanted(["engine_down"], decoys=True)) == (["engine_down"], [])
    assert command._sort_out(command.Wanted(["engine_down"])) == (["engine_down"], None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to do: name a failure, or say all, or --decoys"),
        (["nonsense"], "there is no drill 'nonsense': choose all, close_wait_leak, "),
        (["engine_down"], "no running stack in "),
    ],
)
def test_what_cannot_be_drilled_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enginescope", "drill", *arguments],
        env=os.environ | {"ENGINESCOPE_RUNTIME_DIR": str(tmp_path), "COLUMNS": "300"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stack_that_cannot_page_is_told_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINESCOPE_RUNTIME_DIR", world.stack.runtime_dir)
    with pytest.raises(DrillError, match="nothing can page: the stack runs without Prometheus and Alertmanager"):
        command.drill(command.Wanted(["engine_down"]), Console())


def test_drills_are_told_although_the_stack_for_decoys_does_not_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = [msgspec.structs.replace(world.stack, pids={"prometheus": 1})]

    def start(*_: object) -> AbstractContextManager[Stack]:
        if not stacks:
            raise DrillError("it did not start")
        return nullcontext(stacks.pop())

    monkeypatch.setattr(command, "own_stack", start)
    monkeypatch.setattr(command, "_drill", lambda *_, **__: ({"drills": ["told"]}, 0))
    told, status = command.drill(command.Wanted(["engine_down"], decoys=True, own_stack=True), Console())
    assert (told, status) == ({"drills": ["told"], "decoys": [], "reason": "it did not start"}, 1)


def test_a_stack_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DrillError, match="the stack for drills did not start: it said nothing"), own_stack(1, print):
        pass
