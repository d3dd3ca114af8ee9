"""Health is judged by work without progress, never by age."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine.api.health import OWN_GAP_SECONDS, CoreFacts, ProgressWatch
from telemetry.stages import Phase

IDLE = CoreFacts(
    phase=Phase.IDLE, phase_started_ns=1, steps=10, step_tokens=0, step_longest_ns=0, input_sent=5, input_decoded=5,
    input_taken=5, output_queued=9, output_sent=9, output_received=9,
)  # fmt: skip


def held(seconds: float, **changes: Any) -> list[str]:
    """What is said after the same facts were seen for so long."""
    watch, now, said = ProgressWatch(), 1000.0, list[str]()
    facts = dataclasses.replace(IDLE, **changes)
    for _ in range(round(seconds * 10) + 1):
        said = watch.observe(facts, now)
        now += 0.1
    return said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"phase": Phase.FORWARD}, "step loop has made no progress for 2.1 s (phase forward)"),
        ({"input_decoded": 7, "input_sent": 7}, "step loop has made no progress"),
        ({"input_sent": 8}, "has not read its input socket for 2.1 s (3 messages wait)"),
        ({"output_queued": 11}, "sent no output for 2.1 s (2 messages wait"),
        ({"output_received": 5}, "received no output for 2.1 s (4 messages wait)"),
        ({"gone_threads": ("input",)}, "the core's input thread has been gone for 2.1 s"),
        ({"gone_threads": ("output",)}, "the core's output thread has been gone for 2.1 s"),
    ],
)
def test_each_stuck_part_is_named_after_two_seconds(changes: dict[str, Any], sentence: str) -> None:
    assert held(1.8 if "gone_threads" not in changes else 0.2, **changes) == []
    (said,) = held(2.1, **changes)
    assert sentence in said


def test_an_idle_engine_is_healthy_for_ever() -> None:
    assert held(600) == []


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"step_longest_ns": 1_200_000_000}, 6.0),
        ({"step_tokens": 8000}, 20.0),
        ({"step_tokens": 8000, "phase": Phase.UPDATE}, 2.0),
    ],
)
def test_a_long_step_has_an_allowance(changes: dict[str, Any], allowed: float) -> None:
    changes = {"phase": Phase.FORWARD} | changes
    assert held(allowed - 0.3, **changes) == []
    assert len(held(allowed + 0.3, **changes)) == 1


def test_progress_begins_the_wait_anew() -> None:
    watch = ProgressWatch()
    for tick in range(200):
        facts = dataclasses.replace(IDLE, phase=Phase.FORWARD, steps=tick // 15)
        assert watch.observe(facts, tick * 0.1) == []


def test_the_age_of_the_oldest_output() -> None:
    watch = ProgressWatch()
    watch.observe(dataclasses.replace(IDLE, output_sent=12), 10.0)
    watch.observe(dataclasses.replace(IDLE, output_sent=15), 10.5)
    assert watch.output_age == 0.5
    watch.observe(dataclasses.replace(IDLE, output_sent=15, output_received=12), 11.0)
    assert watch.output_age == 0.0


Facts = st.builds(
    CoreFacts,
    phase=st.sampled_from([0, 1, 2, 3, 4, 5, 77]),
    phase_started_ns=st.integers(0, 3),
    steps=st.integers(0, 3),
    step_tokens=st.integers(0, 100_000),
    step_longest_ns=st.integers(0, 10**12),
    input_sent=st.integers(0, 5),
    input_decoded=st.integers(0, 5),
    input_taken=st.integers(0, 5),
    output_queued=st.integers(0, 5),
    output_sent=st.integers(0, 5),
    output_received=st.integers(0, 5),
    gone_threads=st.sampled_from([(), ("input",), ("output",), ("input", "output")]),
)


@given(st.lists(st.tuples(Facts, st.floats(OWN_GAP_SECONDS + 0.01, 1e6)), max_size=30))
def test_who_looks_too_seldom_says_nothing(looks: list[tuple[CoreFacts, float]]) -> None:
    watch, now = ProgressWatch(), 0.0
    for facts, pause in looks:
        now += pause
        assert watch.observe(facts, now) == []


@given(st.lists(Facts, max_size=60))
def test_nothing_is_said_within_two_seconds_whatever_happens(looks: list[CoreFacts]) -> None:
    watch = ProgressWatch()
    for index, facts in enumerate(looks):
        said = watch.observe(facts, index * 0.1)
        said = [sentence for sentence in said if "thread" not in sentence or index < 3]
        assert index > 19 or said == []
        assert said == [] or facts.busy or facts.input_sent > facts.input_decoded or facts.output_queued > (
            min(facts.output_sent, facts.output_received)
        ) or facts.output_sent > facts.output_received  # fmt: skip
