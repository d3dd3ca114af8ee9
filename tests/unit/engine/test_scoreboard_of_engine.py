"""What the engine's processes put on their pages beside the hot path."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from instrumented_engine.api.timeline import Recorder, Timeline
from instrumented_engine.config import EngineSettings
from instrumented_engine.launcher import as_flags
from instrumented_engine.process import count_logs
from telemetry.layout import API, BYTE_BOUNDS, BYTE_HISTOGRAMS, CORE, DURATION_BOUNDS
from telemetry.scoreboard import Writer
from telemetry.settings import parse
from telemetry.stages import Stamp


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path, API)
    yield writer
    writer.close()


def in_flight(recorder: Recorder, **stamps: int) -> Timeline:
    timeline = Timeline(None, chat=False)
    for name, stamp in stamps.items():
        timeline.stamps[Stamp[name]] = stamp
    recorder.started(timeline)
    return timeline


def test_where_requests_are_and_since_when(page: Writer) -> None:
    recorder = Recorder(page)
    oldest = in_flight(recorder, HTTP_STARTED=100, INPUT_HANDED=150, OUTPUT_FIRST_RECEIVED=400)
    in_flight(recorder, HTTP_STARTED=200, INPUT_HANDED=390)
    in_flight(recorder, HTTP_STARTED=210, INPUT_HANDED=300)
    in_flight(recorder, HTTP_STARTED=500)
    recorder.publish_ages()
    groups = {
        name: (page[f"{name}_inflight"], page[f"{name}_oldest_ns"]) for name in ("receive", "first_output", "streaming")
    }
    assert groups == {"receive": (1, 500), "first_output": (2, 300), "streaming": (1, 400)}
    assert page["oldest_request_ns"] == 100
    recorder.ended(oldest)
    recorder.publish_ages()
    assert (page["oldest_request_ns"], page["streaming_inflight"], page["streaming_oldest_ns"]) == (200, 0, 0)


def test_outcomes_errors_and_reasons_are_counted_together(page: Writer) -> None:
    recorder = Recorder(page)
    for status, reason in ((200, ""), (400, ""), (503, "waiting"), (503, "rate"), (504, ""), (500, "")):
        timeline = in_flight(recorder, HTTP_STARTED=1)
        timeline.status, timeline.shed_reason = status, reason
        recorder.ended(timeline)
    gone = in_flight(recorder, HTTP_STARTED=1)
    gone.status, gone.aborted = 499, True
    recorder.ended(gone)
    assert (page["requests_shed"], page["shed_waiting"], page["shed_rate"]) == (2, 1, 1)
    counted = {name: page[name] for name in API.slots if name.startswith("errors_") and page[name]}
    assert counted == {"errors_protocol": 1, "errors_overload": 2, "errors_timeout": 1, "errors_internal": 1}


def test_log_records_of_all_threads_are_counted(page: Writer) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    level = root.level
    root.setLevel(logging.DEBUG)
    count_logs(page)
    try:
        log = logging.getLogger("test.counting")
        with ThreadPoolExecutor(4) as pool:
            for number in range(400):
                pool.submit(log.warning if number % 2 else log.critical, "x")
        log.info("x")
        log.debug("x")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert (page["log_info"], page["log_warning"], page["log_error"]) == (1, 200, 200)


def test_histograms_of_bytes_lie_as_those_of_durations() -> None:
    assert len(BYTE_BOUNDS) == len(DURATION_BOUNDS)
    assert tuple(sorted(BYTE_BOUNDS)) == BYTE_BOUNDS
    assert set(API.histograms) | set(CORE.histograms) >= BYTE_HISTOGRAMS


def test_settings_survive_the_way_to_a_child() -> None:
    for settings in (EngineSettings(), EngineSettings(adaptive_limit=True, cpu_bind="0-3,5", request_timeout=0.25)):
        assert parse(EngineSettings, "engine", as_flags(settings), environment={}) == settings
