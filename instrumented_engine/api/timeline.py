"""The stamps of one request from its first byte to its last, and the record they end in."""

from __future__ import annotations

import random
import re
import time
from typing import Final

from instrumented_engine import wire
from instrumented_engine.api.errors import class_of
from telemetry.layout import API
from telemetry.records import Repeats, RequestRecord
from telemetry.scoreboard import Writer
from telemetry.stages import CORE_STAMPS, STAGES, STAMP_COUNT, RequestFlag, Stamp, clamp

CLIENT_CLOSED_REQUEST: Final = 499
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_SPAN: Final = bytes(8)
_SLOT: Final = API.slot_index
_OLDEST: Final = _SLOT["oldest_request_ns"]
_RECEIVE, _FIRST_OUTPUT, _STREAMING = _GROUPS = tuple(
    (_SLOT[f"{group}_inflight"], _SLOT[f"{group}_oldest_ns"]) for group in ("receive", "first_output", "streaming")
)


def parse_traceparent(header: str | None) -> tuple[bytes, bytes, bool] | None:
    """Trace id, parent span id and sampled flag of a W3C ``traceparent``; None when absent or invalid."""
    match = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = bytes.fromhex(match[2]), bytes.fromhex(match[3])
    if not any(trace_id) or not any(span_id):
        return None
    return trace_id, span_id, bool(int(match[4], 16) & 1)


class Timeline:
    """What is stamped into while a request is on its way."""

    __slots__ = (
        "aborted",
        "answered",
        "cached_tokens",
        "core_index",
        "disconnected",
        "flags",
        "forward",
        "output_receive",
        "output_send",
        "output_tokens",
        "parent_span_id",
        "prompt_tokens",
        "request_id",
        "shed_reason",
        "span_id",
        "stamps",
        "status",
        "trace_id",
    )

    def __init__(self, traceparent: str | None, *, chat: bool) -> None:
        self.stamps = [0] * STAMP_COUNT
        self.stamps[Stamp.HTTP_STARTED] = time.time_ns()
        parent = parse_traceparent(traceparent)
        self.trace_id = parent[0] if parent else random.randbytes(16)
        self.parent_span_id = parent[1] if parent else _NO_SPAN
        self.span_id = random.randbytes(8)
        self.flags = RequestFlag(0)
        if chat:
            self.flags |= RequestFlag.CHAT
        if parent and parent[2]:
            self.flags |= RequestFlag.PARENT_SAMPLED
        self.request_id = ""
        self.status = 500
        self.aborted = False
        self.answered = self.disconnected = False
        """Whether the whole response was written, and whether the client left before that."""
        self.shed_reason = "no_core"
        """Why it was refused, if it was."""
        self.core_index = 0
        self.prompt_tokens = 0
        self.cached_tokens = -1
        """Of the choice that found the fewest of them, -1 before the first one ended."""
        self.output_tokens = 0
        self.forward = Repeats()
        self.output_send = Repeats()
        self.output_receive = Repeats()

    def stamp(self, moment: Stamp) -> None:
        """Now."""
        self.stamps[moment] = time.time_ns()

    def output_received(self, handover: wire.OutputHandover, decoded_ns: int) -> None:
        """An output message with something for this request was decoded; a message for several choices counts once."""
        stamps = self.stamps
        if stamps[Stamp.OUTPUT_LAST_HANDED] == handover.handed_ns:
            return
        if not stamps[Stamp.OUTPUT_QUEUED]:
            stamps[Stamp.OUTPUT_QUEUED] = handover.queued_ns
            stamps[Stamp.OUTPUT_FIRST_HANDED] = handover.handed_ns
            stamps[Stamp.OUTPUT_FIRST_RECEIVED] = decoded_ns
        stamps[Stamp.OUTPUT_LAST_HANDED] = handover.handed_ns
        stamps[Stamp.OUTPUT_LAST_RECEIVED] = decoded_ns
        self.output_send.add(handover.handed_ns - handover.queued_ns)
        self.output_receive.add(decoded_ns - handover.handed_ns)

    def finished(self, message: wire.Finished) -> None:
        """The core's part of the stamps of one choice came home: the first and the last of all choices count."""
        for moment, stamp in zip(CORE_STAMPS, message.stamps, strict=False):
            known = self.stamps[moment]
            if not known or (stamp > known if moment is Stamp.LAST_SAMPLED else 0 < stamp < known):
                self.stamps[moment] = stamp
        # Choices of one request share their steps, so the longest row of them stands for all and no sum is taken.
        count, busy_ns, max_ns = message.forward
        forward = self.forward
        self.forward = Repeats(max(forward.count, count), max(forward.busy_ns, busy_ns), max(forward.max_ns, max_ns))
        cached = message.cached_tokens
        self.cached_tokens = cached if self.cached_tokens < 0 else min(self.cached_tokens, cached)

    def record(self) -> RequestRecord:
        """The request as a record, with the stamps put in order."""
        if self.aborted:
            self.flags |= RequestFlag.ABORTED
        return RequestRecord(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_span_id=self.parent_span_id,
            status=self.status,
            core_index=self.core_index,
            flags=int(self.flags),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=max(self.cached_tokens, 0),
            clamped=clamp(self.stamps),
            stamps=self.stamps,
            forward=self.forward,
            output_send=self.output_send,
            output_receive=self.output_receive,
            request_id=self.request_id,
        )


def _whereabouts(stamps: list[int]) -> tuple[tuple[int, int], int]:
    """The slots of the group that a request in flight belongs to, and since when."""
    if stamps[Stamp.OUTPUT_FIRST_RECEIVED]:
        return _STREAMING, stamps[Stamp.OUTPUT_FIRST_RECEIVED]
    if stamps[Stamp.INPUT_HANDED]:
        return _FIRST_OUTPUT, stamps[Stamp.INPUT_HANDED]
    return _RECEIVE, stamps[Stamp.HTTP_STARTED]


class Recorder:
    """Writes finished timelines to the API's page. Used by the event loop's thread only."""

    def __init__(self, page: Writer) -> None:
        self._page = page
        self._ring = page.ring()
        self._stages = [(page.histogram(stage.name), stage.start, stage.end) for stage in STAGES]
        self._request = page.histogram("request")
        self._first_token = page.histogram("time_to_first_token")
        self._slots = page.slots
        self.live: dict[int, Timeline] = {}
        """Requests in flight in order of arrival, by identity."""

    def started(self, timeline: Timeline) -> None:
        """A request arrived."""
        self.live[id(timeline)] = timeline
        self._page["requests_received"] += 1
        self._page["requests_inflight"] += 1

    def ended(self, timeline: Timeline) -> None:
        """Its response was sent, or its client went away."""
        timeline.stamp(Stamp.HTTP_ENDED)
        del self.live[id(timeline)]
        record = timeline.record()
        self._ring.append(record.pack())
        self._page["requests_inflight"] -= 1
        outcome = _outcome_slot(timeline)
        self._page[outcome] += 1
        self._page["client_disconnects"] += timeline.disconnected
        if outcome == "requests_shed":
            self._page[f"shed_{timeline.shed_reason}"] += 1
        if timeline.status >= 400 and not timeline.aborted:
            self._page[f"errors_{class_of(timeline.status).name}"] += 1
        self._page["stamps_clamped"] += record.clamped
        self._page["prompt_tokens"] += record.prompt_tokens
        self._observe(record.stamps)

    def publish_ages(self) -> None:
        """How many requests are where, and since when the oldest of them has been there."""
        groups: dict[tuple[int, int], list[int]] = {group: [0, 0] for group in _GROUPS}
        for timeline in self.live.values():
            group, since = _whereabouts(timeline.stamps)
            found = groups[group]
            found[0] += 1
            found[1] = min(found[1] or since, since)
        for (count, oldest), values in groups.items():
            self._slots[count], self._slots[oldest] = values
        first = next(iter(self.live.values()), None)
        self._slots[_OLDEST] = first.stamps[Stamp.HTTP_STARTED] if first else 0

    def _observe(self, stamps: list[int]) -> None:
        started = stamps[Stamp.HTTP_STARTED]
        self._request.observe(stamps[Stamp.HTTP_ENDED] - started)
        if stamps[Stamp.OUTPUT_FIRST_RECEIVED]:
            self._first_token.observe(stamps[Stamp.OUTPUT_FIRST_RECEIVED] - started)
        for histogram, start, end in self._stages:
            if stamps[start] and stamps[end]:
                histogram.observe(stamps[end] - stamps[start])


def _outcome_slot(timeline: Timeline) -> str:
    if timeline.aborted:
        return "requests_aborted"
    if timeline.status == 503:
        return "requests_shed"
    if timeline.status >= 500:
        return "requests_server_error"
    return "requests_ok" if timeline.status < 400 else "requests_client_error"
