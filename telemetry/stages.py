"""The six stages of a request: the only place where their names and stamps are spelled.

Every stamp is wall-clock nanoseconds (``time.time_ns``) of one host, so that stamps of different processes can be
drawn on one line. Stages overlap while a request streams: the last three run from their first to their last output.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final


class Stamp(IntEnum):
    """Index of each moment in a request's list of stamps; 0 in the list means "not reached"."""

    HTTP_STARTED = 0
    """The HTTP request line and headers reached the application."""
    PARSED = 1
    """The body was read and validated."""
    INPUT_HANDED = 2
    """The input message was handed to the input socket."""
    INPUT_QUEUED = 3
    """The core decoded it and put it on its input queue."""
    SCHEDULED = 4
    """First scheduled into a step."""
    FIRST_SAMPLED = 5
    LAST_SAMPLED = 6
    OUTPUT_QUEUED = 7
    """Its first output was put on the core's output queue."""
    OUTPUT_FIRST_HANDED = 8
    """Its first output was handed to the output socket."""
    OUTPUT_LAST_HANDED = 9
    OUTPUT_FIRST_RECEIVED = 10
    OUTPUT_LAST_RECEIVED = 11
    """Its last output was decoded and given to the request's stream."""
    HTTP_ENDED = 12
    """The response was sent, or the client went away."""


STAMP_COUNT: Final = len(Stamp)

# The stamps that ride home from the core on the finished output, in wire order. Those of the output socket travel in
# the last frame of every output message instead, where the message's own hand-over can be told.
CORE_STAMPS: Final = (Stamp.INPUT_QUEUED, Stamp.SCHEDULED, Stamp.FIRST_SAMPLED, Stamp.LAST_SAMPLED)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: where it begins and ends, and which process does the work."""

    name: str
    start: Stamp
    end: Stamp
    process: str

    @property
    def span_name(self) -> str:
        """The OpenTelemetry span name, such as ``engine.receive``."""
        return f"engine.{self.name}"


RECEIVE: Final = Stage("receive", Stamp.PARSED, Stamp.INPUT_HANDED, "api")
DESERIALIZE: Final = Stage("deserialize", Stamp.INPUT_HANDED, Stamp.INPUT_QUEUED, "core")
SCHEDULE: Final = Stage("schedule", Stamp.INPUT_QUEUED, Stamp.SCHEDULED, "core")
FORWARD: Final = Stage("forward", Stamp.SCHEDULED, Stamp.LAST_SAMPLED, "core")
OUTPUT_SEND: Final = Stage("output_socket.send", Stamp.OUTPUT_QUEUED, Stamp.OUTPUT_LAST_HANDED, "core")
OUTPUT_RECEIVE: Final = Stage("output_socket.receive", Stamp.OUTPUT_FIRST_HANDED, Stamp.OUTPUT_LAST_RECEIVED, "api")

STAGES: Final = (RECEIVE, DESERIALIZE, SCHEDULE, FORWARD, OUTPUT_SEND, OUTPUT_RECEIVE)
REPEATED_STAGES: Final = (FORWARD, OUTPUT_SEND, OUTPUT_RECEIVE)
"""Stages that happen once per step or per output; their records carry a count, busy time and maximum."""


class Phase(IntEnum):
    """What the core's main thread is doing; the value of its page's ``phase`` slot."""

    STARTING = 0
    IDLE = 1
    INPUT = 2
    SCHEDULE = 3
    FORWARD = 4
    UPDATE = 5


STEP_SPAN: Final = "engine.step"


class Attribute:
    """Span attribute names of our own; the others are OpenTelemetry semantic conventions."""

    STAGE_COUNT: Final = "engine.stage.count"
    STAGE_BUSY: Final = "engine.stage.busy_ns"
    STAGE_MAX: Final = "engine.stage.max_ns"
    STAMPS_CLAMPED: Final = "engine.stamps_clamped"
    REQUEST_ID: Final = "engine.request.id"
    CORE_INDEX: Final = "engine.core.index"
    STEP_ID: Final = "engine.step.id"
    STEP_BATCH_SIZE: Final = "engine.step.batch_size"
    STEP_TOKENS: Final = "engine.step.tokens"
    ACCEPT_QUEUE_MAX: Final = "enginescope.accept_queue.max"
    RECEIVE_QUEUE_MAX: Final = "enginescope.kernel.receive_queue.max_bytes"
    SEND_QUEUE_MAX: Final = "enginescope.kernel.send_queue.max_bytes"
    LOOP_LAG_MAX: Final = "enginescope.event_loop.lag_max_ms"
    PROCESS_FROZEN: Final = "enginescope.process.frozen_ms"


class RequestFlag(IntFlag):
    """What else a request record says about its request."""

    CHAT = 1
    STREAM = 2
    PARENT_SAMPLED = 4
    """The client's ``traceparent`` had the sampled flag."""
    ABORTED = 8
    """The client went away before the end."""


ROUTES: Final = {False: "/v1/completions", True: "/v1/chat/completions"}


def clamp(stamps: MutableSequence[int]) -> int:
    """Make reached stamps drawable and return how many were moved.

    Clock steps and stamps taken on either side of a context switch can put a stamp before the one it follows. After
    this, stage starts never decrease in stage order, every end is at or after its start, and all lie inside the
    server span.
    """
    moved = 0
    low, high = stamps[Stamp.HTTP_STARTED], stamps[Stamp.HTTP_ENDED]
    for index in Stamp:
        value = stamps[index]
        if value and not low <= value <= high:
            stamps[index] = min(max(value, low), high)
            moved += 1
    start = low
    for stage in STAGES:
        if 0 < stamps[stage.start] < start:
            stamps[stage.start] = start
            moved += 1
        start = max(start, stamps[stage.start])
        if 0 < stamps[stage.end] < stamps[stage.start]:
            stamps[stage.end] = stamps[stage.start]
            moved += 1
    return moved
