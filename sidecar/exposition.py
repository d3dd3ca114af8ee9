"""A snapshot as the text of a scrape: written once for each snapshot, however many ask for it.

OpenMetrics, which Prometheus asks for, is written here: byte for byte what prometheus_client writes, in a tenth of
its time, since what comes before a value hardly ever changes and is kept. Any other format is prometheus_client's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.metrics import Labels, Values, bucket_names, families, histogram_values, plain_values
from sidecar.snapshot import Exemplar, HistogramSample, Snapshot
from telemetry import catalog
from telemetry.catalog import Kind, Metric

OPENMETRICS: Final = "application/openmetrics-text"
_END: Final = "# EOF\n"
_PLAIN_BELOW: Final = 1_000_000
"""Whole numbers below it are written without an exponent."""
BucketKey = tuple[str, Labels, tuple[float, ...]]
"""Metric, labels and bounds of a histogram."""
_go_string: Final[Callable[[float], str]] = floatToGoString


class SnapshotCollector(Collector):
    """Feeds prometheus_client from the last snapshot; nothing before the first."""

    def __init__(self, latest: Callable[[], Snapshot | None], version: str) -> None:
        self._latest = latest
        self._version = version

    def collect(self) -> Iterator[Family]:
        """The families of the last snapshot."""
        snapshot = self._latest()
        return iter(()) if snapshot is None else families(snapshot, self._version)


class Exposition:
    """Answers scrapes from the last snapshot. Any thread may ask."""

    def __init__(self, latest: Callable[[], Snapshot | None], version: str) -> None:
        self._latest = latest
        self._collector = SnapshotCollector(latest, version)
        self._writer = OpenMetricsWriter(version)
        self._lock = threading.Lock()
        self._written: tuple[Snapshot | None, bytes] = (None, _END.encode())

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for the value of an ``Accept`` header."""
        encode, content_type = choose_encoder(accept)
        if not content_type.startswith(OPENMETRICS):
            return encode(self._collector), content_type
        with self._lock:
            snapshot = self._latest()
            if snapshot is not None and snapshot is not self._written[0]:
                self._written = snapshot, self._writer.write(snapshot)
            return self._written[1], content_type


class OpenMetricsWriter:
    """Writes snapshots; keeps what came before the values the last time."""

    def __init__(self, version: str) -> None:
        self._info = _head(catalog.BUILD_INFO) + _series(catalog.BUILD_INFO.name, ("version",), (version,)) + "1.0\n"
        self._heads: dict[str, str] = {}
        self._series: dict[tuple[str, Labels], str] = {}
        self._buckets: dict[BucketKey, tuple[str, ...]] = {}

    def write(self, snapshot: Snapshot) -> bytes:
        """The whole text."""
        last, self._series = self._series, {}  # label values come and go, and what is gone is let go
        last_buckets, self._buckets = self._buckets, {}
        text = [self._info]
        for metric, values in plain_values(snapshot):
            lines = self._lines(metric, values, last)
            if lines:
                text += (self._head(metric), *lines)
        for metric, samples in histogram_values(snapshot):
            text.append(self._head(metric))
            for labels, sample in samples:
                text += self._histogram(metric, labels, sample, last_buckets)
        text.append(_END)
        return "".join(text).encode()

    def _head(self, metric: Metric) -> str:
        found = self._heads.get(metric.name)
        if found is None:
            found = self._heads[metric.name] = _head(metric)
        return found

    def _lines(self, metric: Metric, values: Values, last: Mapping[tuple[str, Labels], str]) -> list[str]:
        lines = []
        for labels, value in values:
            key = metric.name, labels
            begin = self._series[key] = last.get(key) or _series(metric.name, metric.labels, labels)
            lines.append(f"{begin}{_number(value)}\n")
        return lines

    def _histogram(
        self, metric: Metric, labels: Labels, sample: HistogramSample, last: Mapping[BucketKey, tuple[str, ...]]
    ) -> Iterable[str]:
        key = metric.name, labels, sample.bounds
        begins = self._buckets[key] = last.get(key) or _bucket_series(metric, labels, sample.bounds)
        counts = list(accumulate(sample.counts))
        values = [*map(_number, counts), _number(counts[-1]), _number(sample.total)]
        for bucket, exemplar in sample.exemplars.items():
            values[bucket] += _exemplar(exemplar)
        return [f"{begin}{value}\n" for begin, value in zip(begins, values, strict=True)]


def _number(value: float) -> str:
    if type(value) is int and 0 <= value < _PLAIN_BELOW:
        return f"{value}.0"
    return _go_string(value)


def _head(metric: Metric) -> str:
    name = metric.name
    for kind, ending in ((Kind.COUNTER, "_total"), (Kind.INFO, "_info")):
        if metric.kind is kind:
            name = name.removesuffix(ending)
    return f"# HELP {name} {_escape(metric.help)}\n# TYPE {name} {metric.kind.value}\n"


def _series(name: str, label_names: Iterable[str], labels: Iterable[str]) -> str:
    """All of a line that comes before its value."""
    pairs = sorted(zip(label_names, labels, strict=False))
    inside = ",".join(f'{label}="{_escape(value)}"' for label, value in pairs)
    return f"{name}{{{inside}}} " if inside else f"{name} "


def _bucket_series(metric: Metric, labels: Labels, bounds: tuple[float, ...]) -> tuple[str, ...]:
    """The beginnings of a histogram's lines: its buckets, count and sum."""
    le = (*metric.labels, "le")
    buckets = (_series(f"{metric.name}_bucket", le, (*labels, bound)) for bound in bucket_names(bounds))
    ends = (_series(f"{metric.name}_{end}", metric.labels, labels) for end in ("count", "sum"))
    return (*buckets, *ends)


def _exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {_go_string(exemplar.value)} {exemplar.timestamp}'


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
