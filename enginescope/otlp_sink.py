"""``python -m enginescope.otlp_sink``: a small OTLP/HTTP endpoint that keeps spans in memory and can be asked for them.

It stands where a collector would, so that ``up`` and the tests can count what really arrived instead of what was sent.
Not a trace store: it forgets the oldest traces, and everything at its end.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from telemetry.settings import parse_or_exit, setting

_BODY_LIMIT: Final = 64 * 1024 * 1024
Json = dict[str, Any]


@dataclass(frozen=True)
class SinkSettings:
    """enginescope OTLP sink: receives OTLP/HTTP traces and answers questions about them."""

    listen: str = setting("HOST:PORT to listen on", "127.0.0.1:4318")
    keep_traces: int = setting("traces to keep; the oldest go first", 50_000)


class SpanStore:
    """Spans by trace id; bounded, safe for several threads."""

    def __init__(self, keep_traces: int) -> None:
        self._keep = keep_traces
        self._lock = threading.Lock()
        self._traces: OrderedDict[str, list[Json]] = OrderedDict()
        self.received = 0

    def add(self, request: ExportTraceServiceRequest) -> None:
        """Keep every span of an export request."""
        with self._lock:
            for resource_spans in request.resource_spans:
                resource = _attributes(resource_spans.resource.attributes)
                for scope_spans in resource_spans.scope_spans:
                    for span in scope_spans.spans:
                        self._traces.setdefault(span.trace_id.hex(), []).append(_span(span, resource))
                        self.received += 1
            while len(self._traces) > self._keep:
                self._traces.popitem(last=False)

    def trace(self, trace_id: str) -> list[Json]:
        """The spans of one trace, by start time."""
        with self._lock:
            return sorted(self._traces.get(trace_id, []), key=lambda span: int(span["start_ns"]))

    def count(self, trace_ids: Iterable[str]) -> Counter[str]:
        """How many spans of each name those traces have together."""
        with self._lock:
            return Counter(span["name"] for trace_id in trace_ids for span in self._traces.get(trace_id, []))

    def named(self, name: str) -> list[Json]:
        """All spans of one name."""
        with self._lock:
            return [span for spans in self._traces.values() for span in spans if span["name"] == name]


def _span(span: Span, resource: Json) -> Json:
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex(),
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "status": span.status.code,
        "attributes": _attributes(span.attributes),
        "links": [{"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()} for link in span.links],
        "resource": resource,
    }


def _attributes(pairs: Iterable[KeyValue]) -> Json:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: SpanStore

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        if self.path == "/v1/traces":
            self._export(body)
        elif self.path == "/api/counts":
            self._counts(body)
        else:
            self._answer(404, {"error": f"no such path: {self.path}"})

    def do_GET(self) -> None:
        kind, _, wanted = self.path.removeprefix("/api/").partition("/")
        if self.path == "/healthz":
            self._answer(200, {"spans_received": self.store.received})
        elif kind == "traces" and wanted:
            self._answer(200, self.store.trace(wanted))
        elif kind == "spans" and wanted:
            self._answer(200, self.store.named(wanted))
        else:
            self._answer(404, {"error": f"no such path: {self.path}"})

    def _body(self) -> bytes | None:
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _BODY_LIMIT:
            self.close_connection = True
            self._answer(413, {"error": f"a body needs a Content-Length of at most {_BODY_LIMIT} bytes"})
            return None
        body = self.rfile.read(int(length))
        if self.headers.get("content-encoding") != "gzip":
            return body
        try:
            return gzip.decompress(body)
        except (OSError, EOFError, zlib.error):
            self._answer(400, {"error": "the body is not gzip, as Content-Encoding says"})
            return None

    def _export(self, body: bytes) -> None:
        try:
            self.store.add(ExportTraceServiceRequest.FromString(body))
        except DecodeError:
            self._answer(400, {"error": "the body is no ExportTraceServiceRequest in protobuf"})
            return
        self._send(200, "application/x-protobuf", ExportTraceServiceResponse().SerializeToString())

    def _counts(self, body: bytes) -> None:
        try:
            trace_ids = [str(trace_id) for trace_id in json.loads(body)["trace_ids"]]
        except (ValueError, KeyError, TypeError):
            self._answer(400, {"error": 'the body must be {"trace_ids": [...]}'})
            return
        self._answer(200, dict(self.store.count(trace_ids)))

    def _answer(self, status: int, body: Any) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing about single requests."""


def serve(host: str, port: int, store: SpanStore) -> ThreadingHTTPServer:
    """A server, not yet running, over a store.

    Raises:
        OSError: the port cannot be bound.
    """
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    return server


def main() -> None:
    """Serve until SIGTERM."""
    settings = parse_or_exit(SinkSettings, "enginescope.otlp_sink", "ENGINESCOPE_SINK_")
    host, _, port = settings.listen.rpartition(":")
    try:
        server = serve(host, int(port), SpanStore(settings.keep_traces))
    except (OSError, ValueError) as error:
        print(f"enginescope.otlp_sink: cannot listen on {settings.listen}: {error}", file=sys.stderr)
        sys.exit(2)
    server.serve_forever()


if __name__ == "__main__":
    main()
