"""``python -m telemetry.span_exporter``: the process that turns request records into OpenTelemetry spans.

It is configured by the standard ``OTEL_*`` variables. The pages' rings are its only queue: while the collector is slow
or away the rings fill, the oldest records are overwritten, and every one of them is counted. Nothing here can slow the
engine, which only ever writes to its own memory.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from telemetry.layout import API, CORE, EXPORTER, SIDECAR, core_index
from telemetry.records import KernelSample, RequestRecord, RingReader, StepRecord
from telemetry.scoreboard import Liveness, PageError, Reader, Writer, pages, runtime_directory
from telemetry.settings import parse_or_exit, setting
from telemetry.spans import KernelHistory, Resources, join_steps, request_spans, step_span
from telemetry.stages import RequestFlag

_log = logging.getLogger("telemetry.span_exporter")
_GRPC_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
_DEFAULT_SERVICE: Final = "enginescope-engine"


@dataclass(frozen=True)
class ExporterSettings:
    """enginescope span exporter: request records to OTLP, configured by the OTEL_* variables."""

    runtime_dir: str = setting("directory of the scoreboard pages; default $ENGINESCOPE_RUNTIME_DIR", "")


@dataclass(eq=False)
class _Source:
    """One page with records, and how far it was read."""

    reader: Reader
    ring: RingReader
    lost: int = 0
    dead: bool = False
    """Its owner had ended before the last read, so that nothing can follow."""


class PageSources:
    """The pages with records in a runtime directory, as they come and go."""

    def __init__(self, directory: Path, previous_pid: int, previous_position: int) -> None:
        self._directory = directory
        self._previous = (previous_pid, previous_position)
        self._sources: dict[Path, _Source] = {}
        self._done: set[tuple[Path, int]] = set()

    def open_new(self) -> None:
        """Open pages that appeared, those of dead processes too: their last records are still there."""
        for source in self._sources.values():
            source.dead = source.reader.liveness() is not Liveness.ALIVE
        for path in pages(self._directory):
            with suppress(FileNotFoundError):
                # A later process may get the same pid, so the same file name.
                identity = (path, path.stat().st_ino)
                if identity not in self._done:
                    self._done.add(identity)
                    self._open(path)

    def forget_dead(self) -> None:
        """Close the pages of processes that had ended before their records were read."""
        for path, source in list(self._sources.items()):
            if source.dead:
                source.reader.close()
                del self._sources[path]

    def of_role(self, role: str) -> list[_Source]:
        """The open pages of one role."""
        return [source for source in self._sources.values() if source.reader.layout.role == role]

    def _open(self, path: Path) -> None:
        try:
            reader = Reader(path)
        except PageError as error:
            _log.warning("%s", error)
            return
        if reader.layout.role not in (API.role, CORE.role, SIDECAR.role):
            reader.close()
            return
        pid, position = self._previous
        start = position if reader.layout is API and reader.header.pid == pid else 0
        self._sources[path] = _Source(reader, reader.ring(start))


class SpanPump:
    """Moves records from the rings to the exporter, and counts what became of each."""

    def __init__(self, sources: PageSources, exporter: SpanExporter, provider: TracerProvider, page: Writer) -> None:
        self._sources = sources
        self._exporter = exporter
        self._sampler = provider.sampler
        self._resource = provider.resource
        self._page = page
        self._history = KernelHistory()
        self._export_time = page.histogram("export")
        self._batch = int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512"))

    def run_once(self) -> None:
        """Export everything that the rings hold now."""
        self._page["heartbeat_ns"] = time.time_ns()
        self._sources.open_new()
        for source in self._sources.of_role(SIDECAR.role):
            self._history.extend(KernelSample.unpack(payload) for payload in source.ring.drain())
        for source in self._sources.of_role(API.role):
            self._pump_requests(source)
        for source in self._sources.of_role(CORE.role):
            steps = join_steps(StepRecord.unpack(payload) for payload in source.ring.drain())
            self._export([step_span(step, self._process_resource(source.reader)) for step in steps])
        self._sources.forget_dead()

    def _pump_requests(self, source: _Source) -> None:
        resources = Resources(self._process_resource(source.reader), self._core_resources(), self._resource)
        while payloads := source.ring.drain(self._batch):
            spans: list[ReadableSpan] = []
            for payload in payloads:
                record = RequestRecord.unpack(payload)
                if self._sampled(record):
                    spans += request_spans(record, resources, self._history)
                else:
                    self._page["records_unsampled"] += 1
            self._export(spans)
            self._page["records_read"] += len(payloads)
            self._page["source_pid"] = source.reader.header.pid
            self._page["source_position"] = source.ring.position
        self._page["records_lost"] += source.ring.lost - source.lost
        source.lost = source.ring.lost

    def _sampled(self, record: RequestRecord) -> bool:
        trace_id = int.from_bytes(record.trace_id, "big")
        parent = Context()
        if any(record.parent_span_id):
            flags = TraceFlags(TraceFlags.SAMPLED if record.flags & RequestFlag.PARENT_SAMPLED else 0)
            context = SpanContext(
                trace_id, int.from_bytes(record.parent_span_id, "big"), is_remote=True, trace_flags=flags
            )
            parent = set_span_in_context(NonRecordingSpan(context), parent)
        result = self._sampler.should_sample(parent, trace_id, "POST", SpanKind.SERVER)
        return result.decision is not Decision.DROP

    def _export(self, spans: list[ReadableSpan]) -> None:
        for batch in _batches(spans, self._batch):
            started_ns = time.perf_counter_ns()
            result = self._exporter.export(batch)
            self._export_time.observe(time.perf_counter_ns() - started_ns)
            if result is SpanExportResult.SUCCESS:
                self._page["spans_exported"] += len(batch)
            else:
                self._page["spans_dropped"] += len(batch)
                self._page["export_failures"] += 1

    def _core_resources(self) -> dict[int, Resource]:
        """The newest page of each core wins."""
        readers = (source.reader for source in self._sources.of_role(CORE.role))
        return {core_index(reader.header.name): self._process_resource(reader) for reader in readers}

    def _process_resource(self, reader: Reader) -> Resource:
        header = reader.header
        return self._resource.merge(
            Resource({"process.pid": header.pid, "service.instance.id": f"{header.name}-{header.pid}"})
        )


def _batches(spans: list[ReadableSpan], size: int) -> list[list[ReadableSpan]]:
    return [spans[first : first + size] for first in range(0, len(spans), size)]


def build_exporter() -> SpanExporter:
    """The OTLP exporter that ``OTEL_EXPORTER_OTLP[_TRACES]_PROTOCOL`` asks for; http/protobuf by default.

    Raises:
        ValueError: an unknown protocol, or one whose package is not installed; one sentence.
    """
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol in (None, "", "http/protobuf"):
        return OTLPSpanExporter()
    if protocol == "grpc":
        try:
            grpc = importlib.import_module(_GRPC_EXPORTER)
        except ImportError:
            raise ValueError("OTLP over grpc needs: pip install opentelemetry-exporter-otlp-proto-grpc") from None
        exporter: SpanExporter = grpc.OTLPSpanExporter()
        return exporter
    raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc, not {protocol!r}")


def main() -> None:
    """Export until SIGTERM, then what is left."""
    settings = parse_or_exit(ExporterSettings, "telemetry.span_exporter", "ENGINESCOPE_EXPORTER_")
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        directory = Path(settings.runtime_dir) if settings.runtime_dir else runtime_directory(create=True)
        exporter = build_exporter()
        previous = _previous_position(directory)
        page = Writer(directory, EXPORTER)
    except (PageError, ValueError) as error:
        print(f"telemetry.span_exporter: {error}", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("OTEL_SERVICE_NAME", _DEFAULT_SERVICE)
    sources = PageSources(directory, *previous)
    pump = SpanPump(sources, exporter, TracerProvider(shutdown_on_exit=False), page)
    # A ring holds 4096 records: at 1000 requests a second the SDK's default of 5 s would lose some.
    interval = int(os.environ.get("OTEL_BSP_SCHEDULE_DELAY", "500")) / 1000
    while not stopping.wait(interval):
        pump.run_once()
    pump.run_once()
    exporter.shutdown()
    page.close()


def _previous_position(directory: Path) -> tuple[int, int]:
    """How far an exporter before this one came: (pid of the API process, ring position)."""
    found = (0, 0)
    for path in pages(directory):
        try:
            reader = Reader(path)
        except PageError:
            continue
        if reader.layout is EXPORTER:
            found = (reader["source_pid"], reader["source_position"])
        reader.close()
    return found


if __name__ == "__main__":
    main()
