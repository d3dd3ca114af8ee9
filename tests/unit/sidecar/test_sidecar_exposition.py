"""The text of a scrape is byte for byte what prometheus_client writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.exposition import generate_latest

from sidecar.exposition import OPENMETRICS, Exposition, OpenMetricsWriter, SnapshotCollector
from sidecar.snapshot import Exemplar, FaultSample, HistogramSample, ListenerSample, Snapshot
from telemetry.catalog import NETNS_COUNTERS
from telemetry.layout import DURATION_BOUNDS
from tests.unit.sidecar.test_sidecar_snapshot import FULL

BOUNDS = tuple(bound * 1e-9 for bound in DURATION_BOUNDS)
COUNTS = st.integers(0, 2**64)
NUMBERS = COUNTS | st.floats() | st.booleans()
HISTOGRAMS = st.builds(
    HistogramSample,
    st.just(BOUNDS),
    st.tuples(*[COUNTS] * (len(BOUNDS) + 1)),
    st.floats(0),
    st.dictionaries(
        st.integers(0, len(BOUNDS)),
        st.builds(Exemplar, st.from_regex("[0-9a-f]{32}", fullmatch=True), st.floats(0), st.floats(0, 1e10)),
        max_size=3,
    ),
)
SNAPSHOTS = st.builds(
    replace,
    st.just(FULL),
    process_up=st.dictionaries(st.text(), st.booleans(), max_size=4),
    cpu_seconds=st.dictionaries(st.text(), st.floats(), max_size=4),
    netns=st.dictionaries(st.sampled_from(sorted(NETNS_COUNTERS)), NUMBERS),
    listeners=st.lists(
        st.builds(ListenerSample, COUNTS, st.text(), COUNTS, COUNTS, COUNTS, st.floats(), COUNTS, HISTOGRAMS),
        max_size=3,
    ).map(tuple),
    page_histograms=st.dictionaries(
        st.sampled_from(["api", "core"]),
        st.dictionaries(st.sampled_from(["receive", "forward", "step", "output_transit"]), HISTOGRAMS),
    ),
    faults=st.lists(
        st.builds(FaultSample, st.text(), st.text(), st.floats(), st.dictionaries(st.text(), NUMBERS)), max_size=3
    ).map(tuple),
)


def by_the_library(snapshot: Snapshot) -> bytes:
    written: bytes = generate_latest(SnapshotCollector(lambda: snapshot, "1"))  # type: ignore[no-untyped-call]
    return written


@given(st.lists(SNAPSHOTS, min_size=1, max_size=3))
def test_equal_to_the_library_from_snapshot_to_snapshot(snapshots: list[Snapshot]) -> None:
    writer = OpenMetricsWriter("1")
    for snapshot in snapshots:
        assert writer.write(snapshot).splitlines() == by_the_library(snapshot).splitlines()


@pytest.mark.parametrize("snapshot", [FULL, Snapshot(0, 0.0, "demo", False)])
def test_equal_to_the_last_byte(snapshot: Snapshot) -> None:
    assert Exposition(lambda: snapshot, "1").answer(OPENMETRICS)[0] == by_the_library(snapshot)


def test_nothing_before_the_first_snapshot() -> None:
    empty = Exposition(lambda: None, "1")
    assert empty.answer(OPENMETRICS)[0] == b"# EOF\n"
    assert empty.answer("text/plain")[0] == b""


def test_written_once_for_each_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    latest = [FULL]

    def write(_: OpenMetricsWriter, snapshot: Snapshot) -> bytes:
        written.append(snapshot)
        return b"%d" % len(written)

    monkeypatch.setattr(OpenMetricsWriter, "write", write)
    asked = Exposition(lambda: latest[0], "1")
    assert [asked.answer(OPENMETRICS)[0] for _ in range(3)] == [b"1"] * 3
    latest[0] = replace(FULL, engine_up=False)
    assert asked.answer(OPENMETRICS)[0] == b"2"


def test_nothing_is_kept_of_labels_that_are_gone() -> None:
    writer = OpenMetricsWriter("1")
    sizes = set()
    for number in range(5):
        snapshot = replace(FULL, process_up={f"{number}-{one}": True for one in range(20)})
        assert writer.write(snapshot) == by_the_library(snapshot)
        sizes.add((len(writer._series), len(writer._buckets)))
    assert len(sizes) == 1
