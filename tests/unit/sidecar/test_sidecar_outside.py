"""Rules without pages: they name what is certain enough, and never because something cannot be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.judge import OWN_GAP_SECONDS, RULES, Judge, Judgement, Observation, ProcessFacts
from sidecar.outside import OutsideFacts, PortFacts, PortWatch
from sidecar.outside_rules import OUTSIDE_RULES
from sidecar.snapshot import ConnectionSample, EndSample, TcpDetail

Found = set[tuple[str, str]]
IDLE = PortFacts(unaccepted=0, unread=0, unanswered=0, acts=5, outputs=3, cpu_ratio=0.0)
ENGINE = OutsideFacts(process="engine", port=IDLE)
UNRESPONSIVE = {("engine_unresponsive", "engine")}
PAGE = ProcessFacts("api", "api", "alive", 1, "S", frozenset({1}), {"loop_tick_ns": 0})


def watch(seconds: float, outside: OutsideFacts | None, processes: tuple[ProcessFacts, ...] = ()) -> Found:
    """Ten looks a second at an engine that does not move."""
    judge = Judge((*RULES, *OUTSIDE_RULES))
    found: tuple[Judgement, ...] = ()
    for tick in range(int(seconds * 10) + 1):
        found = judge.observe(Observation(tick / 10, processes, outside))
    return {(judgement.fault, judgement.process) for judgement in found}


def at_port(**values: Any) -> OutsideFacts:
    return replace(ENGINE, port=replace(IDLE, **values))


def test_an_idle_engine_is_never_faulted() -> None:
    assert watch(3600, ENGINE) == set()
    assert watch(3600, replace(ENGINE, probe_failures=0)) == set()


@pytest.mark.parametrize(
    ("outside", "silent", "named", "fault"),
    [
        (at_port(unaccepted=1), 6.9, 7.1, UNRESPONSIVE),
        (at_port(unread=1), 6.9, 7.1, UNRESPONSIVE),
        (at_port(unaccepted=1, scan_seconds=5.0), 14.9, 15.1, UNRESPONSIVE),
        (at_port(unaccepted=1, longest_pause=10.0), 31.9, 32.1, UNRESPONSIVE),
        (at_port(unaccepted=1, acts=0), 61.9, 62.1, UNRESPONSIVE),
        (at_port(unaccepted=1, cpu_ratio=1.0), 6.9, 7.1, UNRESPONSIVE),
        (at_port(unanswered=2), 61.9, 62.1, UNRESPONSIVE),
        (at_port(unanswered=2, longest_silence=30.0), 91.9, 92.1, UNRESPONSIVE),
        (replace(ENGINE, probe_failures=2), 0.4, 0.6, UNRESPONSIVE),
        (replace(ENGINE, frozen={"worker": frozenset({7})}), 0.2, 0.4, {("process_frozen", "worker")}),
    ],
)
def test_each_needs_its_time(outside: OutsideFacts, silent: float, named: float, fault: Found) -> None:
    assert watch(silent, outside) == set()
    assert watch(named, outside) == fault


@pytest.mark.parametrize(
    "outside",
    [
        at_port(unanswered=1),  # a slow request, or a long poll
        at_port(unanswered=5, outputs=0, acts=0),  # nobody was ever answered: is it a server at all?
        at_port(unaccepted=3, unanswered=3, cpu_ratio=1.6),  # it computes
        at_port(unaccepted=3, unanswered=3, cpu_ratio=None),
        replace(ENGINE, port=None),
        replace(ENGINE, probe_failures=1),
        replace(ENGINE, probe_failures=None),
    ],
)
def test_what_may_be_well_is_left_alone(outside: OutsideFacts) -> None:
    assert watch(600, outside) == set()


def test_a_stopped_engine_is_not_also_unresponsive() -> None:
    frozen = replace(at_port(unaccepted=3, unanswered=9), frozen={"engine": frozenset({7})}, probe_failures=9)
    assert watch(600, frozen) == {("process_frozen", "engine")}


def test_one_frozen_worker_after_another_is_told_apart() -> None:
    judge = Judge(OUTSIDE_RULES)
    for tick in range(50):
        facts = replace(ENGINE, frozen={"worker": frozenset({tick // 2})})
        assert judge.observe(Observation(tick / 10, (), facts)) == ()


def test_progress_restarts_the_timers() -> None:
    judge = Judge(OUTSIDE_RULES)
    for tick in range(3000):
        facts = at_port(unaccepted=4, unread=2, unanswered=9, acts=5 + tick // 50, outputs=3 + tick // 50)
        assert judge.observe(Observation(tick / 10, (), facts)) == ()


def test_evidence_says_that_it_is_from_outside() -> None:
    judge = Judge(OUTSIDE_RULES)
    found: tuple[Judgement, ...] = ()
    for tick in range(80):
        found = judge.observe(Observation(tick / 10, (), at_port(unaccepted=1, unread=2)))
    (judgement,) = found
    assert judgement.evidence["outside_only"] == 1.0
    assert judgement.evidence["confidence"] < 1.0
    assert (judgement.evidence["unaccepted"], judgement.evidence["unread"]) == (1, 2)


def test_the_surest_evidence_is_told_however_long_it_lasts() -> None:
    judge = Judge(OUTSIDE_RULES)
    for tick in range(1000):
        found = judge.observe(Observation(tick / 10, (), replace(at_port(unanswered=2), probe_failures=2)))
    assert [judgement.evidence["confidence"] for judgement in found] == [0.6]


def test_a_client_that_is_neither_read_nor_answered_waits_once() -> None:
    judge = Judge(OUTSIDE_RULES)
    for tick in range(100):
        found = judge.observe(Observation(tick / 10, (), at_port(unaccepted=2, unread=3, unanswered=4)))
    assert [judgement.evidence["waiting"] for judgement in found] == [6]


ports = st.builds(
    PortFacts,
    unaccepted=st.integers(0, 3),
    unread=st.integers(0, 3),
    unanswered=st.integers(0, 3),
    acts=st.integers(0, 2),
    outputs=st.integers(0, 2),
    longest_pause=st.floats(0, 30),
    longest_silence=st.floats(0, 30),
    cpu_ratio=st.none() | st.floats(0, 3),
)
engines = st.builds(
    OutsideFacts,
    process=st.just("engine"),
    port=st.none() | ports,
    frozen=st.sampled_from([{}, {"engine": frozenset({1})}, {"worker": frozenset({2, 3})}]),
    probe_failures=st.none() | st.integers(0, 4),
)


def judged(outside: OutsideFacts | None) -> Found:
    """One look a tick, far enough apart that a rule's whole time passes, near enough not to be a gap."""
    judge = Judge(OUTSIDE_RULES)
    found: tuple[Judgement, ...] = ()
    for tick in range(200):
        found = judge.observe(Observation(tick * OWN_GAP_SECONDS, (), outside))
    return {(judgement.fault, judgement.process) for judgement in found}


@given(engines, st.sampled_from(["port", "probe_failures", "cpu_ratio", "all"]))
def test_hiding_facts_never_adds_a_fault(full: OutsideFacts, hidden: str) -> None:
    without_cpu = replace(full, port=replace(full.port, cpu_ratio=None) if full.port else None)
    less = {
        "port": replace(full, port=None),
        "probe_failures": replace(full, probe_failures=None),
        "cpu_ratio": without_cpu,
        "all": None,
    }[hidden]
    assert judged(less) <= judged(full)


@given(engines)
def test_pages_tell_more(outside: OutsideFacts) -> None:
    assert not watch(100, outside, (PAGE,)) & (
        UNRESPONSIVE | {("process_frozen", "engine"), ("process_frozen", "worker")}
    )


@pytest.mark.parametrize("liveness", ["exited", "dead"])
def test_pages_that_an_engine_left_behind_say_nothing_of_the_next_one(liveness: str) -> None:
    assert watch(10, at_port(unaccepted=1), (replace(PAGE, liveness=liveness),)) >= UNRESPONSIVE


@given(engines, st.floats(OWN_GAP_SECONDS + 0.01, 1e5))
def test_an_observer_that_looks_too_seldom_says_nothing(outside: OutsideFacts, pause: float) -> None:
    judge = Judge(OUTSIDE_RULES)
    for tick in range(20):
        assert judge.observe(Observation(tick * pause, (), outside)) == ()


# --- what one port is seen to do


def scan(
    silent: float | None, established: int = 1, time_wait: int = 0, never: int = 0, stuck: int = 0, overdue: int = 0
) -> ConnectionSample:
    detail = TcpDetail(0, 0, unanswered=never, never_answered=never, silent=silent, overdue=overdue)
    states = {"established": established, "close_wait": 0, "time_wait": time_wait}
    end = EndSample(states, 0, 0, stuck, 0, 0, detail)
    return ConnectionSample(80, "http", states, 0, 0, 0, ends={"accepted": end})


def facts(port: PortWatch) -> PortFacts:
    assert port.facts is not None
    return port.facts


def test_what_was_sent_before_the_watch_began_is_no_act() -> None:
    for before in (scan(5.0, established=0), scan(5.0, established=4, time_wait=7)):
        port = PortWatch()
        port.note_scan(before, 1.0, 1.0, 100.0)
        assert (facts(port).acts, facts(port).outputs) == (0, 0)


def test_outputs_are_moments_that_move() -> None:
    port = PortWatch()
    for second, silent in ((100, 50.0), (101, 51.0), (102, 0.3), (103, 1.3), (104, 2.2), (105, 0.0)):
        port.note_scan(scan(silent, established=0), 1.0, 1.0, float(second))
    assert facts(port).outputs == 2


def test_a_told_again_detail_is_no_new_moment() -> None:
    port, sample = PortWatch(), scan(5.0, established=0)
    for second in range(100, 110):
        port.note_scan(sample, 1.0, 1.0, float(second))
    assert facts(port).outputs == 0


def test_a_connection_that_the_server_closed_first_was_served() -> None:
    port = PortWatch()
    port.note_scan(scan(None), 1.0, 1.0, 100.0)
    port.note_scan(scan(None, time_wait=1), 1.0, 1.0, 101.0)
    port.note_scan(scan(None, time_wait=1), 1.0, 1.0, 102.0)
    assert facts(port).outputs == 1


def test_accepting_is_an_act_and_waiting_is_none() -> None:
    port = PortWatch()
    port.note_scan(scan(None, established=0), 1.0, 1.0, 100.0)
    for depth in (1, 2, 3):
        port.note_depth(depth, 100.0 + depth)
    assert facts(port).acts == 0
    port.note_depth(2, 110.0)
    assert (facts(port).acts, facts(port).outputs) == (1, 0)
    assert facts(port).longest_pause == 9.0
    port.note_scan(scan(None, established=1), 1.0, 1.0, 111.0)
    assert facts(port).acts == 2


def test_the_longest_silence_is_learned_from_waits_that_ended() -> None:
    port = PortWatch()
    for second in range(100, 130):
        port.note_scan(scan(float(second - 90), never=1), 1.0, 1.0, float(second))
    assert facts(port).longest_silence == 0.0, "it has not ended yet"
    port.note_scan(scan(0.0), 1.0, 1.0, 130.0)
    assert facts(port).longest_silence == 30.0


def test_an_answer_that_was_cut_off_waits_like_one_that_never_came() -> None:
    port = PortWatch()
    port.note_scan(scan(9.0, established=3, never=1, overdue=2), 1.0, 1.0, 100.0)
    assert facts(port).unanswered == 3


def test_nothing_is_known_without_tcp_info() -> None:
    port = PortWatch()
    port.note_scan(None, 1.0, 1.0, 100.0)
    assert port.facts is None
    sample = scan(1.0)
    port.note_scan(replace(sample, ends={"accepted": replace(sample.ends["accepted"], detail=None)}), 1.0, 1.0, 101.0)
    assert port.facts is None


def test_cores_in_use_over_the_last_seconds() -> None:
    port = PortWatch()
    for second in range(20):
        port.note_scan(scan(1.0), 1.0, 7.0 + second * (0.0 if second < 10 else 2.0), float(second))
    assert facts(port).cpu_ratio == pytest.approx(2.0)
    port.note_scan(scan(1.0), 1.0, None, 21.0)
    assert facts(port).cpu_ratio is None
