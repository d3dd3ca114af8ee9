from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from sidecar.pages import OutputBacklog
from sidecar.scan_interval import ScanInterval
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
    backlog.observe((1, 3), 100, 7, 1.0)
    backlog.observe((1, 3), 100, 8, 2.0)
    assert backlog.messages == 1


def test_a_count_that_is_read_too_early_is_no_offset() -> None:
    backlog = OutputBacklog()
    backlog.observe((1, 2), 5, 5, 0.0)
    backlog.observe((1, 2), 6, 5, 0.1)
    backlog.observe((1, 2), 6, 6, 0.2)
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
