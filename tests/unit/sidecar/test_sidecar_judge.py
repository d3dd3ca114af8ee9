from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.judge import FAULTS, Judge, Judgement, Observation, ProcessFacts
from telemetry.layout import API, CORE
from telemetry.stages import Phase

MAIN, INPUT, OUTPUT, RECEIVER = 10, 11, 12, 21
IDLE_API = ProcessFacts(
    role="api",
    name="api",
    liveness="alive",
    identity=1,
    state="S",
    threads=frozenset({20, RECEIVER}),
    values=dict.fromkeys(API.slots, 0) | {"receiver_thread_id": RECEIVER, "loop_tick_ns": 5},
)
IDLE_CORE = ProcessFacts(
    role="core",
    name="core",
    liveness="alive",
    identity=2,
    state="S",
    threads=frozenset({MAIN, INPUT, OUTPUT}),
    values=dict.fromkeys(CORE.slots, 0)
    | {"input_thread_id": INPUT, "output_thread_id": OUTPUT, "phase": Phase.IDLE, "steps": 100},
)


def with_values(process: ProcessFacts, **values: int) -> ProcessFacts:
    return replace(process, values={**process.values, **values})


def watch(
    seconds: float, api: ProcessFacts | None = IDLE_API, core: ProcessFacts | None = IDLE_CORE, ticking: bool = True
) -> set[tuple[str, str]]:
    """Ten looks a second at processes that do not move, except that the event loop ticks."""
    judge = Judge()
    found: tuple[Judgement, ...] = ()
    for tick in range(int(seconds * 10) + 1):
        seen_api = with_values(api, loop_tick_ns=5 + tick) if api and ticking else api
        found = judge.observe(Observation(tick / 10, tuple(p for p in (seen_api, core) if p)))
    return {(judgement.fault, judgement.process) for judgement in found}


def busy_core(**values: int) -> ProcessFacts:
    return with_values(IDLE_CORE, requests_running=1, phase=Phase.FORWARD, step_tokens=1, **values)


def test_an_idle_engine_is_never_faulted() -> None:
    assert watch(3600) == set()


@pytest.mark.parametrize(
    ("api", "core", "seconds", "fault"),
    [
        (replace(IDLE_API, state="T"), IDLE_CORE, 0.4, ("process_frozen", "api")),
        (IDLE_API, replace(IDLE_CORE, state="t"), 0.4, ("process_frozen", "core")),
        (IDLE_API, replace(IDLE_CORE, liveness="dead"), 0.1, ("process_dead", "core")),
        (IDLE_API, replace(IDLE_CORE, threads=frozenset({MAIN, OUTPUT})), 0.5, ("input_thread_stuck", "core")),
        (IDLE_API, replace(IDLE_CORE, threads=frozenset({MAIN, INPUT})), 0.5, ("output_thread_stuck", "core")),
        (replace(IDLE_API, threads=frozenset({20})), IDLE_CORE, 0.5, ("output_thread_stuck", "api")),
        (IDLE_API, busy_core(), 2.1, ("step_stalled", "core")),
        (IDLE_API, with_values(IDLE_CORE, input_messages_decoded=1), 2.1, ("step_stalled", "core")),
        (with_values(IDLE_API, core_0_input_sent=3), IDLE_CORE, 2.1, ("input_thread_stuck", "core")),
        (IDLE_API, with_values(IDLE_CORE, output_messages_queued=7), 2.1, ("output_thread_stuck", "core")),
        (
            IDLE_API,
            with_values(IDLE_CORE, output_messages_sent=7, output_messages_queued=7),
            2.1,
            ("output_thread_stuck", "api"),
        ),
        (with_values(IDLE_API, requests_inflight=2), None, 5.1, ("api_waits", "api")),
    ],
)
def test_each_fault_is_named_once_its_time_is_over_and_alone(
    api: ProcessFacts, core: ProcessFacts | None, seconds: float, fault: tuple[str, str]
) -> None:
    assert watch(seconds, api, core) == {fault}
    assert fault[0] in FAULTS


def test_a_blocked_event_loop() -> None:
    assert watch(1.9, ticking=False) == set()
    assert watch(2.1, ticking=False) == {("event_loop_blocked", "api")}


def test_a_frozen_process_is_not_also_called_stuck() -> None:
    frozen = replace(busy_core(output_messages_queued=5), state="T")
    assert watch(30, with_values(IDLE_API, core_0_input_sent=3), frozen) == {("process_frozen", "core")}


def test_what_a_stopped_process_has_sent_is_not_the_debt_of_the_other() -> None:
    sent = with_values(IDLE_CORE, output_messages_sent=7, output_messages_queued=7)
    assert watch(30, IDLE_API, replace(sent, state="T")) == {("process_frozen", "core")}
    assert watch(30, IDLE_API, replace(sent, liveness="dead", state=None)) == {("process_dead", "core")}
    handed = with_values(IDLE_API, core_0_input_sent=3)
    assert watch(30, replace(handed, state="T"), IDLE_CORE) == {("process_frozen", "api")}


def test_a_full_pipe_that_is_worked_off_is_not_stuck() -> None:
    core = with_values(IDLE_CORE, output_messages_queued=3000, output_messages_sent=2000)
    judge = Judge()
    for tick in range(300):  # five messages a second
        api = with_values(IDLE_API, loop_tick_ns=5 + tick, core_0_output_received=1 + tick // 2)
        assert judge.observe(Observation(tick / 10, (api, core))) == ()


def test_a_clean_exit_is_no_fault() -> None:
    assert watch(60, IDLE_API, replace(IDLE_CORE, liveness="exited")) == set()


def test_a_long_prefill_gets_its_time() -> None:
    prefill = with_values(busy_core(), step_tokens=8000)
    assert watch(19, IDLE_API, prefill) == set()
    assert watch(20.2, IDLE_API, prefill) == {("step_stalled", "core")}


def test_slow_steps_get_five_times_their_own_worst() -> None:
    slow = replace(busy_core(), step_p99_ns=1_000_000_000)
    assert watch(4.8, IDLE_API, slow) == set()
    assert watch(5.1, IDLE_API, slow) == {("step_stalled", "core")}


def test_messages_to_an_earlier_core_are_not_this_ones_debt() -> None:
    assert watch(10, with_values(IDLE_API, input_messages_sent=50, core_0_input_sent=0)) == set()


def test_messages_to_the_core_before_are_not_the_debt_of_one_that_starts() -> None:
    """As in a reload: the API process counts anew when the new core is ready."""
    assert (
        watch(10, with_values(IDLE_API, core_0_input_sent=638), with_values(IDLE_CORE, phase=Phase.STARTING)) == set()
    )


def test_each_core_has_its_own_pair_of_counters() -> None:
    second = replace(IDLE_CORE, name="core-1")
    assert watch(2.1, with_values(IDLE_API, core_1_input_sent=1), second) == {("input_thread_stuck", "core-1")}


def test_progress_restarts_the_timer() -> None:
    judge = Judge()
    for tick in range(200):
        core = busy_core(steps=100 + tick // 15)
        api = with_values(IDLE_API, loop_tick_ns=tick + 1)
        assert judge.observe(Observation(tick / 10, (api, core))) == ()


def test_the_observers_own_gap_restarts_every_timer() -> None:
    judge = Judge()
    stuck = Observation(0.0, (IDLE_API, with_values(IDLE_CORE, output_messages_queued=7)))
    judge.observe(stuck)
    assert judge.observe(replace(stuck, monotonic=30.0)) == ()
    assert {j.fault for j in judge.observe(replace(stuck, monotonic=30.5))} == set()


def test_a_judgement_says_since_when() -> None:
    judge = Judge()
    frozen = replace(IDLE_CORE, state="T")
    judge.observe(Observation(1.0, (IDLE_CORE,)))
    judge.observe(Observation(1.5, (frozen,)))
    (judgement,) = judge.observe(Observation(2.0, (frozen,)))
    assert judgement.since == 1.5


# --- fewer facts never give a firmer judgement

slot_values = st.integers(0, 3)


def facts_of(role: str, slots: tuple[str, ...]) -> st.SearchStrategy[ProcessFacts]:
    return st.builds(
        ProcessFacts,
        role=st.just(role),
        name=st.just(role),
        liveness=st.sampled_from(["alive", "dead", "exited", "unknown"]),
        identity=st.just(1),
        state=st.sampled_from(["R", "S", "T", "t", "D"]),
        threads=st.frozensets(slot_values, max_size=3),
        values=st.fixed_dictionaries(dict.fromkeys(slots, slot_values)),
        step_p99_ns=st.just(0),
    )


def judged(processes: tuple[ProcessFacts, ...]) -> set[tuple[str, str]]:
    judge = Judge()
    found: tuple[Judgement, ...] = ()
    for tick in range(120):
        found = judge.observe(Observation(tick / 10, processes))
    return {(judgement.fault, judgement.process) for judgement in found}


@given(facts_of("api", API.slots), facts_of("core", CORE.slots), st.data())
def test_hiding_facts_never_adds_a_fault(api: ProcessFacts, core: ProcessFacts, data: st.DataObject) -> None:
    hidden_threads = data.draw(st.booleans())
    hidden_state = data.draw(st.booleans())
    less = replace(
        core,
        threads=None if hidden_threads else core.threads,
        state=None if hidden_state else core.state,
    )
    assert judged((api, less)) <= judged((api, core))


@given(facts_of("core", CORE.slots))
def test_an_unknown_process_is_only_ever_silent(core: ProcessFacts) -> None:
    assert judged((replace(core, liveness="unknown"),)) == set()
