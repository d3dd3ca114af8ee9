"""Which slot and histogram of which page feeds which metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from telemetry import catalog
from telemetry.catalog import Metric
from telemetry.layout import (
    API,
    CORE,
    ERROR_CLASSES,
    EXPORTER,
    GATE_DRAINING,
    GATE_OPEN,
    GATE_RELOADING,
    LOG_LEVELS,
    SHED_REASONS,
)
from telemetry.stages import STAGES

Labelled = Mapping[tuple[str, ...], tuple[str, str]]
"""Label values -> (page role, slot or histogram)."""
Sources = Mapping[Metric, Labelled]

_API: Final = API.role
_CORE: Final = CORE.role
_EXPORTER: Final = EXPORTER.role

PAGE_COUNTERS: Final[Sources] = {
    catalog.REQUESTS: {
        (outcome,): (_API, f"requests_{outcome}")
        for outcome in ("ok", "client_error", "server_error", "aborted", "shed")
    },
    catalog.REQUESTS_SHED: {(reason,): (_API, f"shed_{reason}") for reason in SHED_REASONS},
    catalog.REQUEST_ERRORS: {(name,): (_API, f"errors_{name}") for name in ERROR_CLASSES},
    catalog.CLIENT_DISCONNECTS: {(): (_API, "client_disconnects")},
    catalog.CORE_ENDED: {(outcome,): (_CORE, f"requests_{outcome}") for outcome in ("aborted", "failed")},
    catalog.REQUESTS_RECEIVED: {(): (_API, "requests_received")},
    catalog.TOKENS: {("prompt",): (_API, "prompt_tokens"), ("generated",): (_API, "generated_tokens")},
    catalog.STAMPS_CLAMPED: {(): (_API, "stamps_clamped")},
    catalog.MESSAGES: {
        ("input", "sent"): (_API, "input_messages_sent"),
        ("input", "received"): (_CORE, "input_messages_decoded"),
        ("input", "rejected"): (_CORE, "input_messages_rejected"),
        ("output", "sent"): (_CORE, "output_messages_sent"),
        ("output", "received"): (_API, "output_messages_received"),
        ("output", "rejected"): (_API, "output_messages_rejected"),
    },
    catalog.DISCONNECTS: {("input",): (_CORE, "input_disconnects"), ("output",): (_API, "output_disconnects")},
    catalog.MESSAGE_BYTES: {
        ("input", "sent"): (_API, "input_bytes_sent"),
        ("input", "received"): (_CORE, "input_bytes_received"),
        ("output", "sent"): (_CORE, "output_bytes_sent"),
        ("output", "received"): (_API, "output_bytes_received"),
    },
    catalog.STEPS: {(): (_CORE, "steps")},
    catalog.PREFIX_CACHE: {(kind,): (_CORE, f"prefix_cache_{kind}_tokens") for kind in ("queried", "hit")},
    catalog.PREEMPTIONS: {(): (_CORE, "preemptions")},
    catalog.LOG_RECORDS: {(role, level): (role, f"log_{level}") for role in (_API, _CORE) for level in LOG_LEVELS},
    catalog.EXPORT_FAILURES: {(): (_EXPORTER, "export_failures")},
    catalog.RECORDS_READ: {(): (_EXPORTER, "records_read")},
    catalog.SPANS: {
        ("exported",): (_EXPORTER, "spans_exported"),
        ("dropped",): (_EXPORTER, "spans_dropped"),
        ("unsampled",): (_EXPORTER, "records_unsampled"),
    },
}

PAGE_GAUGES: Final[Sources] = {
    catalog.REQUESTS_INFLIGHT: {(): (_API, "requests_inflight")},
    catalog.REQUESTS_WAITING: {(): (_CORE, "requests_waiting")},
    catalog.REQUESTS_RUNNING: {(): (_CORE, "requests_running")},
    catalog.REQUESTS_AT: {(kind,): (_API, f"{kind}_inflight") for kind in ("receive", "first_output", "streaming")},
    catalog.HEALTH_PROBLEMS: {(): (_API, "health_problems")},
    catalog.STEP_TOKENS: {(): (_CORE, "step_tokens")},
}

AGES: Final[Labelled] = {
    ("request",): (_API, "oldest_request_ns"),
    ("receive",): (_API, "receive_oldest_ns"),
    ("first_output",): (_API, "first_output_oldest_ns"),
    ("streaming",): (_API, "streaming_oldest_ns"),
    ("waiting",): (_CORE, "waiting_oldest_ns"),
    ("running",): (_CORE, "running_oldest_ns"),
    ("output_queue",): (_CORE, "output_oldest_ns"),
}
"""Slots with the moment since when the oldest one has been there; 0 while nothing is."""

QUEUE_ENDS: Final[Labelled] = {
    ("input",): ("input_messages_decoded", "input_messages_taken"),
    ("output",): ("output_messages_queued", "output_messages_sent"),
}
"""The core's counters of what went into a queue and what came out."""

GATE_STATES: Final = {GATE_OPEN: "open", GATE_RELOADING: "reloading", GATE_DRAINING: "draining"}
"""Values of the API's ``gate`` slot."""

PAGE_HISTOGRAMS: Final[Sources] = {
    catalog.STAGE_DURATION: {(stage.name,): (_API, stage.name) for stage in STAGES},
    catalog.REQUEST_DURATION: {(): (_API, "request")},
    catalog.TIME_TO_FIRST_TOKEN: {(): (_API, "time_to_first_token")},
    catalog.EVENT_LOOP_LAG: {(): (_API, "event_loop_lag")},
    catalog.MESSAGE_SIZE: {
        ("input",): (_API, "input_message_bytes"),
        ("output",): (_CORE, "output_message_bytes"),
    },
    catalog.INPUT_ENCODE: {(): (_API, "input_encode")},
    catalog.INPUT_SEND_CALL: {(): (_API, "input_send_call")},
    catalog.INPUT_DECODE: {(): (_CORE, "input_decode")},
    catalog.INPUT_QUEUE_WAIT: {(): (_CORE, "input_queue_wait")},
    catalog.OUTPUT_TRANSIT: {(): (_API, "output_transit")},
    catalog.OUTPUT_DECODE: {(): (_API, "output_decode")},
    catalog.OUTPUT_ENCODE: {(): (_CORE, "output_encode")},
    catalog.OUTPUT_SEND_CALL: {(): (_CORE, "output_send_call")},
    catalog.STEP_DURATION: {(): (_CORE, "step")},
    catalog.FORWARD_DEVICE: {(): (_CORE, "forward_device")},
    catalog.EXPORT_DURATION: {(): (_EXPORTER, "export")},
}

PROGRESS_SLOTS: Final = {_API: "loop_tick_ns", _CORE: "phase_started_ns", _EXPORTER: "heartbeat_ns"}
"""Page role -> the slot that moves while the process makes progress."""

HEARTBEATS: Final[Labelled] = {
    (_API, "receiver"): (_API, "receiver_heartbeat_ns"),
    (_CORE, "input"): (_CORE, "input_heartbeat_ns"),
    (_CORE, "output"): (_CORE, "output_heartbeat_ns"),
}
"""(process, thread) -> the slot that the thread writes each time it comes round its loop, busy or idle."""

UNEXPORTED: Final = {
    "the judge and the details read them": {
        "main_thread_id", "input_thread_id", "output_thread_id", "receiver_thread_id", "phase_started_ns",
    },
    "what one side of a queue writes; the sidecar exports differences": {
        "input_messages_taken", "input_queue_depth", "output_messages_queued", "output_queue_depth",
    },
    "another slot says it better": {
        "output_last_sequence", "output_last_received_ns", "output_last_sent_ns", "samples",
    },
    "where the exporter is in its source's ring": {"source_pid", "source_position"},
}  # fmt: skip
"""Why -> the slots that feed no metric of their own; a test keeps everything else exported."""
