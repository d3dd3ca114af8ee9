"""Every slot of a page reaches a metric or says why not; derived values are right, and absent where they cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.page_metrics import (
    AGES,
    HEARTBEATS,
    PAGE_COUNTERS,
    PAGE_GAUGES,
    PAGE_HISTOGRAMS,
    PROGRESS_SLOTS,
    QUEUE_ENDS,
    UNEXPORTED,
)
from sidecar.page_values import page_values
from sidecar.snapshot import PageSample, Snapshot
from telemetry import catalog
from telemetry.catalog import Metric
from telemetry.layout import API, CORE, EXPORTER, GATE_DRAINING, GATE_OPEN, Layout
from telemetry.stages import Phase

NOW = 1_790_000_000 * 10**9
SECOND = 10**9
DERIVED = {
    *("gate", "limiter_rate_milli", "phase", "kv_blocks_used", "kv_blocks_total", "step_longest_ns", "records_lost"),
    *(slot for slot in API.slots if slot.startswith("core_")),
}


def page(layout: Layout, name: str = "", liveness: str = "alive", generation: int = 0, **values: int) -> PageSample:
    slots = dict.fromkeys(layout.slots, 0) | ({"phase": Phase.IDLE} if layout is CORE else {}) | values
    return PageSample(layout.role, name or layout.role, 7, liveness, generation, 1, slots)


def values(*pages: PageSample, **more: Any) -> dict[Metric, dict[tuple[str, ...], float]]:
    snapshot = Snapshot(wall_ns=NOW, monotonic=0.0, engine="e", engine_up=True, pages=pages, **more)
    return {metric: dict(found) for metric, found in page_values(snapshot)}


def sources() -> Iterator[tuple[str, str]]:
    for table in (*PAGE_COUNTERS.values(), *PAGE_GAUGES.values(), AGES, HEARTBEATS):
        yield from table.values()
    yield from PROGRESS_SLOTS.items()
    yield from ((CORE.role, slot) for ends in QUEUE_ENDS.values() for slot in ends)


@pytest.mark.parametrize("layout", [API, CORE, EXPORTER], ids=lambda layout: layout.role)
def test_every_slot_and_histogram_is_exported_or_says_why_not(layout: Layout) -> None:
    used = {slot for role, slot in sources() if role == layout.role}
    assert used <= set(layout.slots), "a metric reads a slot that is not there"
    excused = set().union(*UNEXPORTED.values()) | DERIVED
    assert set(layout.slots) - used - excused == set()
    shown = {name for table in PAGE_HISTOGRAMS.values() for role, name in table.values() if role == layout.role}
    assert set(layout.histograms) == shown


def test_counters_are_zero_from_the_start_and_absent_without_pages() -> None:
    totals = {layout.role: dict.fromkeys(layout.slots, 0) for layout in (API, CORE, EXPORTER)}
    found = values(page_totals=totals)
    assert set(found[catalog.REQUESTS_SHED].values()) == {0}
    assert ("no_core",) in found[catalog.REQUESTS_SHED]
    assert ("overload",) in found[catalog.REQUEST_ERRORS]
    assert ("core", "error") in found[catalog.LOG_RECORDS]
    without = values()
    assert all(not without[metric] for metric in without)


def test_ages_are_of_the_oldest_over_all_cores() -> None:
    found = values(
        page(API, oldest_request_ns=NOW - 9 * SECOND),
        page(CORE, waiting_oldest_ns=NOW - 2 * SECOND),
        page(CORE, "core-1", waiting_oldest_ns=NOW - 5 * SECOND, running_oldest_ns=NOW + SECOND),
    )[catalog.OLDEST]
    assert (found[("request",)], found[("waiting",)], found[("streaming",)]) == (9, 5, 0)
    assert found[("running",)] == 0, "a stamp from the future, after a clock step, is no age"


def test_depths_are_differences_for_each_core() -> None:
    found = values(
        page(API),
        page(CORE, input_messages_decoded=8, input_messages_taken=5, output_messages_queued=4, output_messages_sent=4),
        page(CORE, "core-1", input_messages_decoded=7, input_messages_taken=9, output_messages_queued=3),
    )
    assert found[catalog.QUEUE_DEPTH] == {("input",): 3, ("output",): 3}, "a race is not a negative depth"


def test_states_are_one_of_all() -> None:
    found = values(
        page(API, gate=GATE_DRAINING), page(CORE, phase=Phase.FORWARD), page(CORE, "core-1", phase=Phase.IDLE)
    )
    assert found[catalog.GATE] == {("open",): 0, ("reloading",): 0, ("draining",): 1}
    assert found[catalog.CORE_PHASE][("forward",)] == found[catalog.CORE_PHASE][("idle",)] == 1
    assert sum(found[catalog.CORE_PHASE].values()) == 2


def test_the_limit_is_absent_while_there_is_none() -> None:
    assert values(page(API, gate=GATE_OPEN))[catalog.RATE_LIMIT] == {}
    assert values(page(API, limiter_rate_milli=1500))[catalog.RATE_LIMIT] == {(): 1.5}


def test_the_dead_tell_how_often_they_were_started() -> None:
    found = values(page(CORE, liveness="dead", generation=3), page(CORE, "core-1", generation=1))
    assert found[catalog.PROCESS_RESTARTS] == {("core",): 4}


def test_heartbeats_are_absent_before_the_first_and_after_death() -> None:
    assert values(page(CORE))[catalog.HEARTBEAT] == {}
    assert values(page(CORE, liveness="dead", input_heartbeat_ns=NOW))[catalog.HEARTBEAT] == {}
    found = values(page(CORE, input_heartbeat_ns=NOW), page(CORE, "core-1", input_heartbeat_ns=NOW - SECOND))
    assert found[catalog.HEARTBEAT] == {("core", "input"): NOW / 1e9 - 1}
