"""Messages on their way to the cores: how many, and for how long a core has taken none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sidecar.input_backlog import InputBacklog
from sidecar.snapshot import PageSample
from telemetry.layout import API, CORE, Layout
from telemetry.stages import Phase


def page(layout: Layout, name: str = "", **values: int) -> PageSample:
    slots = dict.fromkeys(layout.slots, 0) | ({"phase": Phase.IDLE} if layout is CORE else {}) | values
    return PageSample(layout.role, name or layout.role, 7, "alive", 0, 1, slots)


def seen(*pages: PageSample, now: float = 0.0, backlog: InputBacklog | None = None) -> tuple[int | None, float | None]:
    backlog = backlog or InputBacklog()
    backlog.observe(pages, now)
    return backlog.messages, backlog.age


def test_differences_are_summed_over_the_cores() -> None:
    api = page(API, core_0_input_sent=10, core_1_input_sent=7)
    cores = page(CORE, input_messages_decoded=8), page(CORE, "core-1", input_messages_decoded=7)
    assert seen(api, *cores) == (2, 0.0)


def test_what_others_sent_and_the_core_refused_hides_nothing() -> None:
    core = page(CORE, input_messages_decoded=8, input_messages_rejected=3)
    assert seen(page(API, core_0_input_sent=10), core) == (2, 0.0)


def test_a_core_that_starts_owes_nothing_yet() -> None:
    assert seen(page(API, core_0_input_sent=638), page(CORE, phase=Phase.STARTING)) == (None, None)


def test_unknown_with_two_api_processes_or_none_or_a_dead_one() -> None:
    assert seen(page(CORE)) == (None, None)
    assert seen(page(API), page(API, "api-1"), page(CORE)) == (None, None)
    assert seen(replace(page(API), liveness="dead"), page(CORE)) == (None, None)


def test_the_age_is_of_the_core_that_has_taken_none_for_longest() -> None:
    backlog = InputBacklog()

    def at(now: float, first: int, second: int) -> float | None:
        api = page(API, core_0_input_sent=10, core_1_input_sent=20)
        cores = page(CORE, input_messages_decoded=first), page(CORE, "core-1", input_messages_decoded=second)
        return seen(api, *cores, now=now, backlog=backlog)[1]

    assert at(100.0, 5, 5) == 0.0
    assert at(101.0, 6, 5) == 1.0, "the second waits on"
    assert at(103.0, 6, 6) == 2.0, "now the first has waited longer"
    assert at(104.0, 10, 20) == 0.0, "nothing is on its way"
    assert at(105.0, 10, 20) == 0.0
    backlog.restart_clock()
    assert at(200.0, 5, 5) == 0.0, "nobody looked for a while"


def test_another_core_of_the_same_name_starts_anew() -> None:
    backlog, api = InputBacklog(), page(API, core_0_input_sent=9)
    for now in (1.0, 5.0):
        seen(api, page(CORE, input_messages_decoded=3), now=now, backlog=backlog)
    assert backlog.age == 4.0
    assert seen(api, replace(page(CORE, input_messages_decoded=3), created_ns=2), now=6.0, backlog=backlog)[1] == 0.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 10)), min_size=1, max_size=20))
def test_the_age_is_never_longer_than_nothing_was_taken(steps: list[tuple[int, int, float]]) -> None:
    backlog, now, sent, decoded, moved = InputBacklog(), 0.0, 0, 0, 0.0
    for more, taken, apart in steps:
        now, sent = now + apart, sent + more
        if take := min(taken, sent - decoded):
            decoded, moved = decoded + take, now
        pages = page(API, core_0_input_sent=sent), page(CORE, input_messages_decoded=decoded)
        messages, age = seen(*pages, now=now, backlog=backlog)
        assert messages == sent - decoded
        assert age is not None
        assert 0 <= age <= now - moved
        assert age == 0 or messages
