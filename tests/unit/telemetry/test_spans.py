import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind, StatusCode

from telemetry.records import KernelSample, Repeats, RequestRecord, StepRecord
from telemetry.spans import KernelHistory, Resources, join_steps, request_spans, step_span
from telemetry.stages import STAGES, STAMP_COUNT, Attribute, RequestFlag, Stamp

RESOURCES = Resources(
    Resource({"process.pid": 1}), {0: Resource({"process.pid": 2}), 3: Resource({"process.pid": 5})}, Resource({})
)
MS = 1_000_000


def record(**changes: object) -> RequestRecord:
    base = RequestRecord(
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        parent_span_id=b"p" * 8,
        status=200,
        core_index=0,
        flags=int(RequestFlag.CHAT),
        prompt_tokens=5,
        output_tokens=7,
        cached_tokens=0,
        clamped=0,
        stamps=[(1000 + 100 * index) * MS for index in range(STAMP_COUNT)],
        forward=Repeats(7, 70, 20),
        request_id="chatcmpl-1",
    )
    for name, value in changes.items():
        setattr(base, name, value)
    return base


def sample(at_ms: int, depth: int = 0, frozen: int = 0, queued: int = 0) -> KernelSample:
    return KernelSample(at_ms * MS, depth, 128, queued, 0, 0, queued, frozen, 0)


def test_one_server_span_and_one_for_each_stage() -> None:
    server, *stages = request_spans(record(), RESOURCES, KernelHistory())
    assert [span.name for span in stages] == [stage.span_name for stage in STAGES]
    assert (server.name, server.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert server.parent is not None
    assert server.parent.span_id == int.from_bytes(b"p" * 8, "big")
    assert {span.parent.span_id for span in stages if span.parent} == {server.context.span_id}
    assert len({span.context.span_id for span in (server, *stages)}) == 7
    assert {span.context.trace_id for span in (server, *stages)} == {int.from_bytes(b"t" * 16, "big")}


@pytest.mark.parametrize(("core", "pid"), [(0, 2), (3, 5), (1, None)])
def test_a_stage_is_of_the_process_that_did_it(core: int, pid: int | None) -> None:
    _, *stages = request_spans(record(core_index=core), RESOURCES, KernelHistory())
    pids = [span.resource.attributes.get("process.pid") for span in stages]
    assert pids == [1 if stage.process == "api" else pid for stage in STAGES]


def test_times_are_the_stamps() -> None:
    _, *stages = request_spans(record(), RESOURCES, KernelHistory())
    for span, stage in zip(stages, STAGES, strict=True):
        assert span.start_time == (1000 + 100 * stage.start) * MS
        assert span.end_time == (1000 + 100 * stage.end) * MS


def test_unreached_stages_have_no_span() -> None:
    stamps = [0] * STAMP_COUNT
    stamps[Stamp.HTTP_STARTED], stamps[Stamp.PARSED], stamps[Stamp.HTTP_ENDED] = 1, 2, 9
    spans = list(request_spans(record(stamps=stamps, status=503), RESOURCES, KernelHistory()))
    assert [span.name for span in spans] == ["POST /v1/chat/completions"]
    assert spans[0].status.status_code is StatusCode.ERROR
    assert spans[0].attributes
    assert spans[0].attributes["error.type"] == "503"


def test_a_client_that_left_is_no_server_error() -> None:
    span, *_ = request_spans(record(status=499, flags=int(RequestFlag.ABORTED)), RESOURCES, KernelHistory())
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes
    assert span.attributes["error.type"] == "client_disconnected"
    assert "http.response.status_code" not in span.attributes


def test_repeated_stages_say_how_often() -> None:
    spans = {span.name: span.attributes or {} for span in request_spans(record(), RESOURCES, KernelHistory())}
    forward = spans["engine.forward"]
    assert [forward[name] for name in (Attribute.STAGE_COUNT, Attribute.STAGE_BUSY, Attribute.STAGE_MAX)] == [7, 70, 20]
    assert Attribute.STAGE_COUNT not in spans["engine.receive"]


def test_kernel_facts_cover_exactly_the_spans_interval() -> None:
    history = KernelHistory()
    history.extend(
        [sample(500, depth=99), sample(950, depth=3), sample(1500, depth=7, frozen=1), sample(2300, depth=50)]
    )
    server, *_ = request_spans(record(), RESOURCES, history)
    assert server.attributes
    assert server.attributes[Attribute.ACCEPT_QUEUE_MAX] == 7  # 950 holds until 1500; 500 and 2300 lie outside
    assert server.attributes[Attribute.PROCESS_FROZEN] == 100


def test_socket_stages_get_their_own_queues() -> None:
    history = KernelHistory()
    history.extend([sample(0, queued=11)])
    spans = {span.name: span.attributes or {} for span in request_spans(record(), RESOURCES, history)}
    assert spans["engine.receive"][Attribute.RECEIVE_QUEUE_MAX] == 11
    assert spans["engine.output_socket.send"][Attribute.SEND_QUEUE_MAX] == 11
    assert spans["engine.output_socket.send"][Attribute.RECEIVE_QUEUE_MAX] == 0


def test_without_samples_there_are_no_kernel_facts() -> None:
    for span in request_spans(record(), RESOURCES, KernelHistory()):
        assert not any(name.startswith("enginescope.") for name in span.attributes or {})


def test_history_forgets_the_oldest() -> None:
    history = KernelHistory(keep=3)
    history.extend(sample(at) for at in range(5))
    assert [s.wall_ns // MS for s in history.between(0, 10 * MS)] == [2, 3, 4]


def test_a_step_links_to_all_its_members() -> None:
    members = [(bytes([n]) * 16, bytes([n]) * 8) for n in range(1, 201)]
    whole = StepRecord(4, 10, 20, 200, 200, members)
    parts = [StepRecord.unpack(payload) for payload in whole.pack()]
    (joined,) = join_steps(parts)
    span = step_span(joined, RESOURCES.cores[0])
    assert len(span.links) == 200
    assert span.links[199].context.trace_id == int.from_bytes(bytes([200]) * 16, "big")


def test_the_official_encoder_takes_our_spans() -> None:
    spans = list(request_spans(record(), RESOURCES, KernelHistory()))
    request = encode_spans(spans)
    resources = {r.resource.attributes[0].value.int_value: r for r in request.resource_spans}
    assert set(resources) == {1, 2}
    assert sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans) == 7
