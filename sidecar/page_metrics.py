"""Which slot and histogram of which page feeds which metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from telemetry import catalog
from telemetry.catalog import Metric
from telemetry.layout import API, CORE, EXPORTER
from telemetry.stages import STAGES

Sources = Mapping[Metric, Mapping[tuple[str, ...], tuple[str, str]]]
"""Metric -> label values -> (page role, slot or histogram)."""

_API: Final = API.role
_CORE: Final = CORE.role
_EXPORTER: Final = EXPORTER.role

PAGE_COUNTERS: Final[Sources] = {
    catalog.REQUESTS: {
        (outcome,): (_API, f"requests_{outcome}")
        for outcome in ("ok", "client_error", "server_error", "aborted", "shed")
    },
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
    catalog.MESSAGE_BYTES: {
        ("input", "sent"): (_API, "input_bytes_sent"),
        ("input", "received"): (_CORE, "input_bytes_received"),
        ("output", "sent"): (_CORE, "output_bytes_sent"),
        ("output", "received"): (_API, "output_bytes_received"),
    },
    catalog.STEPS: {(): (_CORE, "steps")},
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
    catalog.QUEUE_DEPTH: {("input",): (_CORE, "input_queue_depth"), ("output",): (_CORE, "output_queue_depth")},
}

PAGE_HISTOGRAMS: Final[Sources] = {
    catalog.STAGE_DURATION: {(stage.name,): (_API, stage.name) for stage in STAGES},
    catalog.REQUEST_DURATION: {(): (_API, "request")},
    catalog.TIME_TO_FIRST_TOKEN: {(): (_API, "time_to_first_token")},
    catalog.EVENT_LOOP_LAG: {(): (_API, "event_loop_lag")},
    catalog.OUTPUT_TRANSIT: {(): (_API, "output_transit")},
    catalog.OUTPUT_DECODE: {(): (_API, "output_decode")},
    catalog.OUTPUT_ENCODE: {(): (_CORE, "output_encode")},
    catalog.OUTPUT_SEND_CALL: {(): (_CORE, "output_send_call")},
    catalog.STEP_DURATION: {(): (_CORE, "step")},
}

PROGRESS_SLOTS: Final = {_API: "loop_tick_ns", _CORE: "phase_started_ns", _EXPORTER: "heartbeat_ns"}
"""Page role -> the slot that moves while the process makes progress."""
