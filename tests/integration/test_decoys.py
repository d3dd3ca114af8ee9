"""Decoys: what a run of them holds against them, and that each says what it must.

The page receiver and the processes are real; that nothing pages on a whole stack is for `make drill`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from alerts.build import seconds
from alerts.catalogue import alerts
from enginescope.decoys import proofs
from enginescope.drill import DrillError
from enginescope.drills import decoys, needs, report
from enginescope.page_receiver import PageReceiver, PageReceiverSettings
from enginescope.probe import ProbeError
from enginescope.stack import Stack

ALERTS = {alert.name: alert for alert in alerts()}


class Odd:
    """Something odd happens, and perhaps pages."""

    COULD_PAGE = ("engine_down",)
    SPAN = "1ms"

    def __init__(self, act: Callable[[], None] = lambda: None, proof: str | None = "it did", **declared: Any) -> None:
        self.__doc__ = "Something odd."
        self._act, self._proof, self.over = act, proof, False
        for name, value in declared.items():
            setattr(self, name, value)

    @contextmanager
    def happening(self, stack: Stack) -> Iterator[Callable[[], str | None]]:
        self._act()
        try:
            yield lambda: self._proof
        finally:
            self.over = True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setattr(decoys, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(decoys, "_SHORTEST_SECONDS", 0.1)
    monkeypatch.setattr(decoys, "QUIET_SECONDS", 0.0)
    with PageReceiver(PageReceiverSettings("127.0.0.1:0", deadman_timeout=600)) as receiver:
        stack = Stack(os.getpid(), "chat", {"page_receiver": receiver.port}, {}, str(tmp_path))
        stack.save()
        yield stack


def page(stack: Stack, alert: str, status: str = "firing", engine: str = "chat") -> None:
    labels = {"alertname": alert, "severity": "critical", "engine": engine}
    body = {"status": status, "labels": labels, "annotations": {}, "startsAt": "2026-01-01T00:00:00Z"}
    url = f"http://127.0.0.1:{stack.ports['page_receiver']}/webhook"
    httpx.post(url, json={"version": "4", "alerts": [body]}).raise_for_status()


def run(stack: Stack, monkeypatch: pytest.MonkeyPatch, decoy: Odd) -> decoys.DecoyResult:
    monkeypatch.setattr(decoys, "decoy_names", lambda: ["odd"])
    monkeypatch.setattr(decoys, "load", lambda _: decoy)
    (result,) = decoys.run_decoys([], stack, lambda _: None)
    return result


def test_silence_with_a_proof_is_what_is_wanted(world: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    decoy = Odd(lambda: page(world, "EngineDown", engine="neighbour"), SPAN="200ms")
    result = run(world, monkeypatch, decoy)
    assert (result.reason, result.proof, result.pages) == (None, "it did", [])
    assert result.seconds >= 0.4
    assert decoy.over
    assert list(report.decoy_table([result]).columns[-1].cells) == ["silent"]


def test_any_page_fails_a_decoy(world: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(world, monkeypatch, Odd(lambda: page(world, "FDGrowth")))
    assert result.pages == ["FDGrowth"]
    assert result.reason is not None
    assert result.reason.startswith("FDGrowth paged: FIRING critical FDGrowth")


def test_without_a_proof_a_decoy_fails(world: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoys, "PROOF_SECONDS", 0.2)
    result = run(world, monkeypatch, Odd(proof=None))
    assert result.reason == "no metric shows that it happened, within 0 s"
    assert result.pages == []


def test_a_decoy_waits_for_silence(world: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    page(world, "EngineDown")
    assert run(world, monkeypatch, Odd()).reason == "EngineDown did not resolve before it, within 0 s"
    page(world, "EngineDown", "resolved")
    assert run(world, monkeypatch, Odd()).reason is None


def test_what_cannot_be_done_is_a_failure_with_its_reason(world: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DrillError("it cannot be done")

    assert run(world, monkeypatch, Odd(fail)).reason == "it cannot be done"


@pytest.mark.parametrize(
    ("declared", "why"),
    [({"NEEDS": "namespace"}, "needs a stack started with --network-namespace"), ({"SPAN": "30m"}, "60 minutes")],
)
def test_what_does_not_fit_is_skipped_by_name(
    world: Stack, monkeypatch: pytest.MonkeyPatch, declared: dict[str, str], why: str
) -> None:
    decoy = Odd()
    for name, value in declared.items():
        setattr(decoy, name, value)
    result = run(world, monkeypatch, decoy)
    assert result.skipped is not None
    assert why in result.skipped
    assert result.as_dict() == {"name": "odd", "skipped": result.skipped}
    json.dumps(result.as_dict())


def test_an_unknown_decoy_is_one_sentence(world: Stack) -> None:
    with pytest.raises(DrillError, match="there is no decoy 'nonsense': choose among bad_requests, "):
        decoys.run_decoys(["nonsense"], world, lambda _: None)


@pytest.mark.parametrize("name", decoys.decoy_names())
def test_every_decoy_says_what_it_could_fool_and_lasts_long_enough(name: str) -> None:
    decoy = decoys.load(name)
    assert (decoy.__doc__ or "").strip().endswith(".")
    assert set(needs.needs(decoy)) <= needs.NEEDS.keys()
    assert decoy.COULD_PAGE
    for failure in decoy.COULD_PAGE:
        (rule,) = (rule for rule in ALERTS[failure].rules if "alert" in rule)
        assert seconds(decoy.SPAN) >= seconds(rule.get("for", "0s"))
    assert decoys.length(decoy, Stack(1, "e", {}, {}, "/", time_scale=0.05)) >= 10
    assert decoys.length(decoy, Stack(1, "e", {}, {}, "/")) == 2 * seconds(decoy.SPAN)


def test_proofs_are_read_from_the_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {("enginescope_x_total", frozenset({("kind", "a")})): 5.0}
    monkeypatch.setattr(proofs, "samples", lambda _: numbers)
    stack = Stack(1, "e", {"sidecar": 1}, {}, "/")
    grew, reached = proofs.grew(stack, "x_total", 3, kind="a"), proofs.reached(stack, "x_total", 9)
    still = proofs.stood_still(stack, "x_total", 0.0)
    assert (grew(), reached()) == (None, None)
    assert still() == "enginescope_x_total stood still for 0 s"
    numbers[("enginescope_x_total", frozenset({("kind", "a")}))] = 9.0
    assert grew() == "enginescope_x_total grew by 4"
    assert reached() == "enginescope_x_total 9"
    assert proofs.stood_still(stack, "gone_total", 0.01)() is None


def test_a_sidecar_that_is_away_proves_nothing() -> None:
    def away() -> str | None:
        raise ProbeError("gone")

    assert decoys._attempt(away) is None


def test_the_decoys_alerts_are_in_the_rules() -> None:
    built = yaml.safe_load((Path(decoys.__file__).parents[2] / "alerts/built/enginescope.rules.yaml").read_text())
    named = {rule.get("alert") for group in built["groups"] for rule in group["rules"]}
    assert {ALERTS[failure].alert for name in decoys.decoy_names() for failure in decoys.load(name).COULD_PAGE} <= named
