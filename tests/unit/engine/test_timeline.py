from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine import wire
from instrumented_engine.api.timeline import Timeline, parse_traceparent
from telemetry.stages import RequestFlag, Stamp

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_valid_traceparent() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-01") == (bytes.fromhex(TRACE), bytes.fromhex(SPAN), True)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == (bytes.fromhex(TRACE), bytes.fromhex(SPAN), False)
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-what-the-future-adds") is not None


def test_invalid_traceparents_start_a_new_trace() -> None:
    for header in (
        None,
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
    ):
        assert parse_traceparent(header) is None
    timeline = Timeline(None, chat=False)
    assert any(timeline.trace_id)
    assert timeline.parent_span_id == bytes(8)


@given(st.text(max_size=80))
def test_any_header_is_survived(header: str) -> None:
    parse_traceparent(header)


def test_outputs_extend_the_last_three_stages() -> None:
    timeline = Timeline(f"00-{TRACE}-{SPAN}-01", chat=True)
    for sequence, queued in ((1, 100), (2, 200), (3, 300)):
        timeline.output_received(wire.OutputHandover(sequence, queued, queued + 10), queued + 30)
    stamps = timeline.stamps
    assert (stamps[Stamp.OUTPUT_QUEUED], stamps[Stamp.OUTPUT_LAST_HANDED]) == (100, 310)
    assert (stamps[Stamp.OUTPUT_FIRST_RECEIVED], stamps[Stamp.OUTPUT_LAST_RECEIVED]) == (130, 330)
    assert (timeline.output_send.count, timeline.output_send.busy_ns, timeline.output_send.max_ns) == (3, 30, 10)
    assert (timeline.output_receive.busy_ns, timeline.output_receive.max_ns) == (60, 20)


def test_the_record_says_what_happened() -> None:
    timeline = Timeline(f"00-{TRACE}-{SPAN}-01", chat=True)
    timeline.finished(wire.Finished(1, "stop", [5, 6, 7, 8], (3, 30, 20)))
    timeline.status, timeline.aborted, timeline.prompt_tokens = 499, True, 12
    timeline.stamp(Stamp.HTTP_ENDED)
    record = timeline.record()
    assert record.trace_id.hex() == TRACE
    assert record.parent_span_id.hex() == SPAN
    assert record.flags == RequestFlag.CHAT | RequestFlag.PARENT_SAMPLED | RequestFlag.ABORTED
    assert record.clamped == 4  # the core's stamps lie long before the request
    assert (record.forward.count, record.prompt_tokens, record.status) == (3, 12, 499)


def test_the_first_and_the_last_of_several_choices_count() -> None:
    timeline = Timeline(None, chat=False)
    for _ in range(2):  # one message with something for two choices
        timeline.output_received(wire.OutputHandover(1, 100, 110), 130)
    timeline.finished(wire.Finished(1, "stop", [5, 6, 7, 80], (3, 30, 20), 16))
    timeline.finished(wire.Finished(2, "length", [4, 9, 10, 70], (4, 35, 10), 32))
    timeline.finished(wire.Finished(3, "abort", [8, 0, 0, 0], (0, 0, 0), 0))
    stamps = timeline.stamps
    moments = (Stamp.INPUT_QUEUED, Stamp.SCHEDULED, Stamp.FIRST_SAMPLED, Stamp.LAST_SAMPLED)
    assert [stamps[moment] for moment in moments] == [4, 6, 7, 80]
    assert (timeline.forward.count, timeline.forward.busy_ns, timeline.forward.max_ns) == (4, 35, 20)
    assert (timeline.output_send.count, timeline.output_receive.count) == (1, 1)
    assert timeline.record().cached_tokens == 0
