"""Records -> OpenTelemetry spans. Pure: no clock, no I/O, no global provider.

Spans are built finished (``ReadableSpan``) from the records' own stamps and ids. A stage's span carries the resource
of the process that did the work, so one trace shows which process each stage was in.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from telemetry.records import KernelSample, Repeats, RequestRecord, StepRecord
from telemetry.stages import (
    OUTPUT_RECEIVE,
    OUTPUT_SEND,
    RECEIVE,
    REPEATED_STAGES,
    ROUTES,
    STAGES,
    STEP_SPAN,
    Attribute,
    RequestFlag,
    Stage,
    Stamp,
)

Attributes = dict[str, AttributeValue]
_SCOPE = InstrumentationScope("enginescope")
_API_FROZEN, _CORE_FROZEN = 1, 2
_SAMPLE_MS = 100


@dataclass(frozen=True)
class Resources:
    """The OpenTelemetry resource of each process."""

    api: Resource
    cores: Mapping[int, Resource]
    """By index; one that is missing has no page that could be read."""
    unknown: Resource

    def of(self, process: str, core: int) -> Resource:
        """Of ``api``, or of the core with that index."""
        return self.api if process == "api" else self.cores.get(core, self.unknown)


class KernelHistory:
    """The sidecar's samples of the last minutes, for the kernel facts on spans."""

    def __init__(self, keep: int = 6000) -> None:
        self._keep = keep
        self._samples: list[KernelSample] = []

    def extend(self, samples: Iterable[KernelSample]) -> None:
        """Add samples in time order."""
        self._samples += samples
        del self._samples[: -self._keep]

    def between(self, start_ns: int, end_ns: int) -> Sequence[KernelSample]:
        """Samples inside an interval, and the last one before it: a gauge holds until the next sample."""
        first = bisect_right(self._samples, start_ns, key=_wall_ns)
        last = bisect_left(self._samples, end_ns, key=_wall_ns)
        return self._samples[max(first - 1, 0) : last]


def _wall_ns(sample: KernelSample) -> int:
    return sample.wall_ns


def request_spans(
    record: RequestRecord,
    resources: Resources,
    history: KernelHistory,
    new_span_id: Callable[[], bytes] = lambda: random.randbytes(8),
) -> Iterator[ReadableSpan]:
    """The HTTP server span and one span for each stage that the request reached."""
    server = _context(record.trace_id, record.span_id)
    start, end = record.stamps[Stamp.HTTP_STARTED], record.stamps[Stamp.HTTP_ENDED]
    parent = _context(record.trace_id, record.parent_span_id, remote=True) if any(record.parent_span_id) else None
    route = ROUTES[bool(record.flags & RequestFlag.CHAT)]
    yield ReadableSpan(
        name=f"POST {route}",
        context=server,
        parent=parent,
        resource=resources.api,
        attributes=_server_attributes(record, route) | _server_kernel_facts(history.between(start, end)),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR) if record.status >= 500 else Status(),
        start_time=start,
        end_time=end,
        instrumentation_scope=_SCOPE,
    )
    for stage in STAGES:
        begun, done = record.stamps[stage.start], record.stamps[stage.end]
        if begun and done:
            yield ReadableSpan(
                name=stage.span_name,
                context=_context(record.trace_id, new_span_id()),
                parent=server,
                resource=resources.of(stage.process, record.core_index),
                attributes=_stage_attributes(stage, record) | _stage_kernel_facts(stage, history.between(begun, done)),
                kind=SpanKind.INTERNAL,
                start_time=begun,
                end_time=done,
                instrumentation_scope=_SCOPE,
            )


def step_span(record: StepRecord, resource: Resource) -> ReadableSpan:
    """One forward pass, in a trace of its own, linked to every member request."""
    return ReadableSpan(
        name=STEP_SPAN,
        context=_context(random.randbytes(16), random.randbytes(8)),
        resource=resource,
        attributes={
            Attribute.STEP_ID: record.step,
            Attribute.STEP_BATCH_SIZE: record.batch_size,
            Attribute.STEP_TOKENS: record.tokens,
        },
        links=tuple(Link(_context(trace_id, span_id, remote=True)) for trace_id, span_id in record.members),
        kind=SpanKind.INTERNAL,
        start_time=record.start_ns,
        end_time=record.end_ns,
        instrumentation_scope=_SCOPE,
    )


def join_steps(records: Iterable[StepRecord]) -> list[StepRecord]:
    """Records of one step, which follow each other, become one."""
    joined: list[StepRecord] = []
    for record in records:
        if joined and joined[-1].step == record.step:
            joined[-1].members += record.members
        else:
            joined.append(record)
    return joined


def _context(trace_id: bytes, span_id: bytes, *, remote: bool = False) -> SpanContext:
    return SpanContext(
        int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), remote, TraceFlags(TraceFlags.SAMPLED)
    )


def _server_attributes(record: RequestRecord, route: str) -> Attributes:
    attributes: Attributes = {
        "http.request.method": "POST",
        "http.route": route,
        "url.path": route,
        "url.scheme": "http",
        "gen_ai.operation.name": "chat" if record.flags & RequestFlag.CHAT else "text_completion",
        "gen_ai.provider.name": "enginescope",
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        Attribute.CORE_INDEX: record.core_index,
        Attribute.STAMPS_CLAMPED: record.clamped,
    }
    if record.request_id:
        attributes[Attribute.REQUEST_ID] = record.request_id
    if record.flags & RequestFlag.ABORTED:
        attributes["error.type"] = "client_disconnected"
    else:
        attributes["http.response.status_code"] = record.status
        if record.status >= 500:
            attributes["error.type"] = str(record.status)
    return attributes


def _stage_attributes(stage: Stage, record: RequestRecord) -> Attributes:
    if stage not in REPEATED_STAGES:
        return {}
    repeats: Repeats = {OUTPUT_SEND: record.output_send, OUTPUT_RECEIVE: record.output_receive}.get(
        stage, record.forward
    )
    return {
        Attribute.STAGE_COUNT: repeats.count,
        Attribute.STAGE_BUSY: repeats.busy_ns,
        Attribute.STAGE_MAX: repeats.max_ns,
    }


def _server_kernel_facts(samples: Sequence[KernelSample]) -> Attributes:
    if not samples:
        return {}
    facts: Attributes = {Attribute.ACCEPT_QUEUE_MAX: max(sample.accept_queue_depth for sample in samples)}
    if lag := max(sample.loop_lag_ms for sample in samples):
        facts[Attribute.LOOP_LAG_MAX] = lag
    return facts | _frozen(samples, _API_FROZEN | _CORE_FROZEN)


def _stage_kernel_facts(stage: Stage, samples: Sequence[KernelSample]) -> Attributes:
    if not samples:
        return {}
    if stage is RECEIVE:
        return {
            Attribute.RECEIVE_QUEUE_MAX: max(sample.input_receive_bytes for sample in samples),
            Attribute.SEND_QUEUE_MAX: max(sample.input_send_bytes for sample in samples),
        }
    if stage in (OUTPUT_SEND, OUTPUT_RECEIVE):
        return {
            Attribute.RECEIVE_QUEUE_MAX: max(sample.output_receive_bytes for sample in samples),
            Attribute.SEND_QUEUE_MAX: max(sample.output_send_bytes for sample in samples),
        }
    return _frozen(samples, _CORE_FROZEN)


def _frozen(samples: Sequence[KernelSample], mask: int) -> Attributes:
    frozen_ms = sum(_SAMPLE_MS for sample in samples if sample.frozen & mask)
    return {Attribute.PROCESS_FROZEN: frozen_ms} if frozen_ms else {}
