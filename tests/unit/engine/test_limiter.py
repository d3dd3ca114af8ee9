import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine.api import limiter
from instrumented_engine.api.limiter import VegasLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def busy_window(vegas: VegasLimiter, clock: Clock, waits: list[float], seconds: float = 3.0) -> None:
    """Ask for more than the limit all the time, and observe the waits evenly."""
    for wait in waits:
        clock.now += seconds / len(waits)
        while vegas.allow():
            pass
        vegas.observe(wait)


def started(rate: float = 100.0) -> tuple[VegasLimiter, Clock]:
    """A limiter that has seen one window with a minimum of 1 ms, and its rate then."""
    clock = Clock()
    return VegasLimiter(clock, rate), clock


@pytest.mark.parametrize(
    ("queueing", "factor"), [(0.0, 1.10), (0.0045, 1.10), (0.006, 1.0), (0.0195, 1.0), (0.0205, 0.75), (3.0, 0.75)]
)
def test_the_rate_follows_the_queueing(queueing: float, factor: float) -> None:
    vegas, clock = started()
    vegas.observe(0.001)
    busy_window(vegas, clock, [0.001 + queueing * 101 / 100] * 100)
    assert vegas.rate == pytest.approx(100.0 * factor)


def test_fewer_samples_or_an_earlier_moment_change_nothing() -> None:
    vegas, clock = started()
    busy_window(vegas, clock, [0.001] * 99, seconds=10)
    assert vegas.rate == 100.0
    vegas, clock = started()
    busy_window(vegas, clock, [0.001] * 1000, seconds=2.9)
    assert vegas.rate == 100.0


def test_an_unused_limit_is_not_raised() -> None:
    vegas, clock = started()
    for _ in range(200):
        clock.now += 1
        assert vegas.allow()
        vegas.observe(0.001)
    assert vegas.rate == 100.0


def test_ten_percent_of_a_second_may_come_at_once() -> None:
    vegas, clock = started(200.0)
    assert sum(vegas.allow() for _ in range(1000)) == 20
    clock.now += 1000
    assert sum(vegas.allow() for _ in range(1000)) == 20


Windows = st.lists(st.tuples(st.floats(0, 0.2), st.floats(0.1, 6)), max_size=30)


@given(Windows)
def test_the_rate_moves_only_by_the_two_factors_and_never_faster_than_every_3_s(
    windows: list[tuple[float, float]],
) -> None:
    vegas, clock = started()
    changed_at = clock.now
    for wait, seconds in windows:
        for _ in range(100):
            clock.now += seconds / 100
            while vegas.allow():
                pass
            before = vegas.rate
            vegas.observe(wait)
            if vegas.rate != before:
                allowed = (before * limiter.RAISE, max(before * limiter.LOWER, limiter.MIN_RATE))
                assert min(abs(vegas.rate - rate) for rate in allowed) < 1e-6 * vegas.rate
                assert clock.now - changed_at >= limiter.INTERVAL_SECONDS
                changed_at = clock.now


@given(st.floats(limiter.MIN_RATE, 5000), st.lists(st.floats(0.001, 2), min_size=1, max_size=60))
def test_admissions_never_exceed_the_rate_and_the_burst(rate: float, pauses: list[float]) -> None:
    clock = Clock()
    vegas = VegasLimiter(clock, rate)
    begin, admitted = clock.now, 0
    for pause in pauses:
        clock.now += pause
        while vegas.allow():
            admitted += 1
        assert admitted <= (clock.now - begin) * rate + vegas.burst + 1e-6


@given(st.lists(st.floats(0.021, 5), min_size=1, max_size=100))
def test_congestion_never_closes_the_engine(waits: list[float]) -> None:
    vegas, clock = started(2.0)
    vegas.observe(0.0)
    for wait in waits:
        busy_window(vegas, clock, [wait] * 100)
    assert vegas.rate >= limiter.MIN_RATE
    clock.now += 1
    assert vegas.allow()
