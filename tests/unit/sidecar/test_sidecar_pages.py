from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sidecar.collectors import Visibility
from sidecar.pages import PageTracker
from telemetry.layout import API, CORE, SIDECAR
from telemetry.records import RequestRecord
from telemetry.scoreboard import Writer
from telemetry.stages import RECEIVE, STAMP_COUNT, Stamp


def record(trace: int, nanoseconds: int) -> bytes:
    stamps = [0] * STAMP_COUNT
    stamps[Stamp.PARSED], stamps[Stamp.INPUT_HANDED] = 10**18, 10**18 + nanoseconds
    return RequestRecord(trace.to_bytes(16, "big"), b"s" * 8, b"\0" * 8, 200, 0, 0, 1, 1, 0, 0, stamps).pack()


@pytest.fixture
def tracker(tmp_path: Path) -> PageTracker:
    return PageTracker(tmp_path, Visibility())


def look(tracker: PageTracker) -> None:
    tracker.scan()
    tracker.collect()


def test_no_directory_and_no_pages(tmp_path: Path) -> None:
    tracker = PageTracker(tmp_path / "absent", Visibility())
    look(tracker)
    assert (tracker.totals(), tracker.histograms(), tracker.samples()) == ({}, {}, ())


def test_totals_outlive_their_page(tmp_path: Path, tracker: PageTracker) -> None:
    first = Writer(tmp_path, API, "api")
    first["requests_ok"] = 5
    first.histogram("receive").observe(2_000_000)
    look(tracker)
    first["requests_ok"] = 7
    first.close()
    second = Writer(tmp_path, API, "api", generation=1)  # the same pid, as in a restarted container
    assert second.path == first.path
    second["requests_ok"] = 1
    second.histogram("receive").observe(2_000_000)
    look(tracker)
    look(tracker)
    assert tracker.totals()["api"]["requests_ok"] == 8
    assert sum(tracker.histograms()["api"]["receive"].counts) == 2
    assert [page.generation for page in tracker.samples()] == [1]
    second.close()


def test_a_deleted_page_is_let_go_and_its_counts_stay(tmp_path: Path, tracker: PageTracker) -> None:
    writer = Writer(tmp_path, CORE, "core-0")
    writer["steps"] = 3
    look(tracker)
    writer["steps"] = 4
    writer.close()
    writer.path.unlink()
    look(tracker)
    assert tracker.samples() == ()
    assert tracker.totals()["core"]["steps"] == 4


def test_exemplars_come_from_the_newest_record_of_a_bucket(tmp_path: Path, tracker: PageTracker) -> None:
    writer = Writer(tmp_path, API, "api")
    ring = writer.ring()
    for trace, nanoseconds in ((1, 2_000_000), (2, 2_100_000), (3, 70 * 10**9)):
        ring.append(record(trace, nanoseconds))
    look(tracker)
    exemplars = tracker.histograms()["api"][RECEIVE.name].exemplars
    assert {index: int(found.trace_id, 16) for index, found in exemplars.items()} == {4: 2, len(API.bounds): 3}
    assert exemplars[4].value == pytest.approx(0.0021)
    assert exemplars[4].timestamp == pytest.approx(10**9 + 0.0021)
    writer.close()


def test_whole_requests_and_first_tokens_have_exemplars(tmp_path: Path, tracker: PageTracker) -> None:
    writer = Writer(tmp_path, API, "api")
    stamps = [0] * STAMP_COUNT
    stamps[Stamp.HTTP_STARTED] = 10**18
    stamps[Stamp.OUTPUT_FIRST_RECEIVED], stamps[Stamp.HTTP_ENDED] = 10**18 + 3_000_000, 10**18 + 70_000_000
    trace = (7).to_bytes(16, "big")
    writer.ring().append(RequestRecord(trace, b"s" * 8, b"\0" * 8, 200, 0, 0, 1, 1, 0, 0, stamps).pack())
    look(tracker)
    found = tracker.histograms()["api"]
    for name, seconds in (("request", 0.07), ("time_to_first_token", 0.003)):
        (exemplar,) = found[name].exemplars.values()
        assert exemplar.trace_id == trace.hex()
        assert exemplar.value == pytest.approx(seconds)
    writer.close()


def test_lost_records_count_from_the_first_look(tmp_path: Path, tracker: PageTracker) -> None:
    writer = Writer(tmp_path, API, "api")
    ring = writer.ring()
    for number in range(API.ring_records + 10):
        ring.append(record(number, 1))
    look(tracker)
    assert tracker.lost == 0
    for number in range(API.ring_records + 3):
        ring.append(record(number, 1))
    look(tracker)
    assert tracker.lost == 3
    writer.close()


def test_what_is_no_page_is_counted_once_and_skipped(
    tmp_path: Path, tracker: PageTracker, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "api-1.page").write_bytes(b"not a page" * 100)
    (tmp_path / "core-1.page").write_bytes(b"")
    with caplog.at_level(logging.ERROR):
        look(tracker)
        look(tracker)
    assert tracker.errors == 2
    assert len(caplog.records) == 2


def test_sidecar_pages_are_never_opened(tmp_path: Path, tracker: PageTracker) -> None:
    writer = Writer(tmp_path, SIDECAR)
    look(tracker)
    assert tracker.pages == {}
    writer.close()


def test_endpoints_of_all_pages_and_the_api_wins(tmp_path: Path, tracker: PageTracker) -> None:
    core, api = Writer(tmp_path, CORE, "core-0"), Writer(tmp_path, API, "api")
    core.set_endpoints({"input": "ipc:///x", "output": "ipc:///core"})
    api.set_endpoints({"http": "127.0.0.1:8000", "output": "ipc:///api"})
    look(tracker)
    assert tracker.endpoints() == {"input": "ipc:///x", "output": "ipc:///api", "http": "127.0.0.1:8000"}
    core.close()
    api.close()
