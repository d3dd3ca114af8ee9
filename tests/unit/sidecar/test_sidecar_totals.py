from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidecar.backlog import OutputBacklog
from sidecar.scan_interval import DetailInterval, ScanInterval
from sidecar.totals import RunningTotal, RunningVector, SampleHistogram

UPDATES = st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 100), max_size=3), max_size=20)


@given(UPDATES)
def test_running_total_never_goes_back(updates: list[dict[Hashable, float]]) -> None:
    total = RunningTotal()
    previous = 0.0
    for values in updates:
        assert total.update(values) >= previous
        previous = total.value


def test_running_total_over_restarts_and_blind_spots() -> None:
    total = RunningTotal()
    total.update({"a": 10})
    total.update({"a": 12, "b": 3})
    total.update({"b": 3})
    total.update({"a": 12, "b": 4})  # seen again, not counted again
    assert total.value == 16


def test_running_vector_keeps_what_replaced_pages_counted() -> None:
    vector = RunningVector(2)
    vector.update("first", [5, 2**64 - 1])
    vector.update("first", [6, 2**64 - 1])
    vector.forget("first")
    vector.update("second", [1, 1])
    assert vector.values.tolist() == [7, 0]  # wraps as the page's slots do


@given(st.lists(st.floats(0, 3)))
def test_histogram_counts_every_sample(values: list[float]) -> None:
    histogram = SampleHistogram((0.0, 1.0, 2.0))
    for value in values:
        histogram.observe(value)
    counts = histogram.sample().counts
    assert sum(counts) == len(values)
    assert counts[0] == sum(value <= 0 for value in values)
    assert counts[3] == sum(value > 2 for value in values)


# --- output messages sent and not received


def test_backlog_ages_while_nothing_is_received() -> None:
    backlog = OutputBacklog()
    for now, received, sent, messages, age in (
        (0.0, 5, 5, 0, 0.0),
        (1.0, 5, 9, 4, 1.0),  # it began at some time after the last look
        (3.0, 5, 10, 5, 3.0),
        (4.0, 6, 10, 4, 0.0),  # one was received: the clock starts anew
        (6.0, 6, 10, 4, 2.0),
        (7.0, 10, 10, 0, 0.0),
    ):
        backlog.observe((1, 2), received, sent, now)
        assert (backlog.messages, backlog.age) == (messages, age)


def test_backlog_starts_anew_when_a_process_was_replaced() -> None:
    backlog = OutputBacklog()
    backlog.observe((1, 2), 100, 100, 0.0)
    backlog.observe((1, 3), 100, 0, 1.0)  # another core counts from 0
    assert backlog.messages == 0
    backlog.observe((1, 3), 100, 2, 2.0)
    assert backlog.messages == 2


def test_backlog_of_a_core_that_was_replaced_before_we_looked() -> None:
    backlog = OutputBacklog()
    backlog.observe((1, 3), 100, 7, 0.0)
    for now in (1.0, 3.0, 6.1):
        backlog.observe((1, 3), 100, 7, now)
    backlog.observe((1, 3), 100, 8, 6.2)
    assert backlog.messages == 1


def test_a_count_that_is_read_too_early_is_no_offset() -> None:
    backlog = OutputBacklog()
    backlog.observe((1, 2), 5, 5, 0.0)
    backlog.observe((1, 2), 6, 5, 0.1)
    backlog.observe((1, 2), 6, 6, 0.2)
    assert backlog.messages == 0


def test_a_core_that_is_kept_from_counting_what_it_sent_is_no_offset() -> None:
    backlog = OutputBacklog()
    backlog.observe((1, 2), 5, 5, 0.0)
    for now in (0.1, 0.2, 1.0, 3.0):
        backlog.observe((1, 2), 6, 5, now)
    backlog.observe((1, 2), 6, 6, 3.1)
    assert backlog.messages == 0


def test_a_starved_sidecar_forgets_the_age() -> None:
    backlog = OutputBacklog()
    backlog.observe((1, 2), 5, 9, 0.0)
    backlog.restart_clock()
    backlog.observe((1, 2), 5, 9, 30.0)
    assert backlog.age == 0.0
    backlog.clear()
    assert backlog.messages is None


# --- how often connections are scanned


def test_scans_stay_within_their_share_of_a_core() -> None:
    interval = ScanInterval()
    assert interval.is_due(100.0)
    for cpu, seconds in ((0.001, 1.0), (0.02, 2.0), (0.5, 5.0)):
        interval.note(100.0, cpu)
        assert interval.seconds == seconds
        assert not interval.is_due(100.0 + seconds - 0.2)
        assert interval.is_due(100.0 + seconds - 0.01)


def costs(plan: DetailInterval, plain: float, full: float, seconds: int, start: int = 0) -> tuple[float, int, int]:
    """CPU time, scans and detailed scans of some seconds with one snapshot each."""
    spent, scans, detailed = 0.0, 0, 0
    for now in range(start, start + seconds):
        if plan.is_due(now):
            wants = plan.wants_detail(now)
            cost = full if wants else plain
            plan.note(now, cost, wants)
            spent, scans, detailed = spent + cost, scans + 1, detailed + wants
    return spent, scans, detailed


def test_cheap_scans_come_every_second_with_detail() -> None:
    plan = DetailInterval()
    assert costs(plan, 0.001, 0.0014, 60)[1:] == (60, 60)
    assert (plan.seconds, plan.detail_seconds) == (1.0, 1.0)


def test_detail_goes_first_and_then_the_interval() -> None:
    shares = {}
    for plain in (0.004, 0.007, 0.0085, 0.0105, 0.03, 0.2):
        plan = DetailInterval()
        costs(plan, plain, plain * 1.5, 30)
        spent, scans, detailed = costs(plan, plain, plain * 1.5, 120, start=30)
        shares[plain] = scans, detailed
        assert spent <= 120 * 0.0105 or plan.seconds == 5.0, "over its share of a core"
    assert shares[0.004] == (120, 120)
    assert shares[0.007][0] == shares[0.0085][0] == 120
    assert 120 > shares[0.007][1] > shares[0.0085][1] > 0
    assert shares[0.0105][1] == shares[0.03][1] == shares[0.2][1] == 0
    assert shares[0.2][0] == 24


def test_detail_comes_back_when_the_connections_are_gone() -> None:
    plan = DetailInterval()
    costs(plan, 0.05, 0.08, 30)
    assert plan.detail_seconds == 0
    assert costs(plan, 0.001, 0.0015, 30, start=30)[2] > 20


def test_detail_at_the_edge_does_not_come_and_go() -> None:
    plan = DetailInterval()
    seen = []
    for step in range(40):
        plain = 0.0088 + 0.0001 * (step % 2)
        costs(plan, plain, plain * 1.5, 10, start=step * 10)
        seen.append(plan.detail_seconds > 0)
    assert sum(before != after for before, after in pairwise(seen[4:])) == 0
