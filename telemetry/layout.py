"""What is on the page of each process: named slots, histograms and the kind of record in its ring.

A layout is data. Writer and Reader compute the same offsets from it, and its digest in the page header makes a reader
of another release refuse the page instead of reading the wrong slot.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LAYOUT_VERSION: Final = 2
HEADER_BYTES: Final = 256
ENDPOINT_BYTES: Final = 128
ENDPOINT_ENTRIES: Final = 24
"""Enough for the HTTP socket and both sockets of every core."""
RING_HEADER_BYTES: Final = 64
RECORD_BYTES: Final = 256
PAGE_ALIGN: Final = 4096

DURATION_BOUNDS: Final = tuple(
    int(seconds * 1e9)
    for seconds in (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
)
"""Upper bounds of duration histograms in nanoseconds: from one socket hop to a stuck request."""


COARSE_BOUNDS: Final = tuple(int(seconds * 1e9) for seconds in (1e-4, 1e-3, 0.01, 0.1, 1, 10))
"""Those of them that are exported for histograms of inner workings."""

COARSE_BYTE_BOUNDS: Final = tuple(2**power for power in (8, 10, 12, 14, 16, 20))
"""The same for histograms of message sizes."""

BYTE_BOUNDS: Final = tuple(2**power for power in (6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24))
"""Upper bounds of the histograms of message sizes in bytes; as many as of durations, so that offsets are the same."""

BYTE_HISTOGRAMS: Final = frozenset({"input_message_bytes", "output_message_bytes"})

MAX_CORES: Final = 8
"""Cores that have a pair of sequence counters on the API's page."""


def core_index(page_name: str) -> int:
    """Which core a page is of: ``core`` is the first, and ``core-3`` the fourth."""
    digits = page_name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def endpoint_roles(core: int, input_endpoint: str, output_endpoint: str) -> dict[str, str]:
    """A core's sockets as its page and the API's publish them: ``input``, and ``input-1`` of the second core."""
    suffix = f"-{core}" if core else ""
    return {f"input{suffix}": input_endpoint, f"output{suffix}": output_endpoint}


GATE_OPEN: Final = 0
GATE_RELOADING: Final = 1
GATE_DRAINING: Final = 2
"""Values of the API's ``gate`` slot: whether new requests are taken."""

SHED_REASONS: Final = (
    "no_core", "input_full", "waiting", "output_depth", "output_age", "rate", "draining", "reloading",
)  # fmt: skip
"""Why a request was refused with 503; each has a slot ``shed_REASON`` on the API's page."""

ERROR_CLASSES: Final = ("protocol", "not_found", "too_large", "overload", "timeout", "internal")
"""Classes of error answers; each has a slot ``errors_CLASS`` on the API's page."""

LOG_LEVELS: Final = ("info", "warning", "error")
"""Counted log records, ``log_LEVEL`` on a page; ``error`` includes critical ones."""


@dataclass(frozen=True)
class Layout:
    """Slots (8-byte unsigned integers), histograms (bucket counts, then the sum) and ring of one page."""

    role: str
    slots: tuple[str, ...]
    histograms: tuple[str, ...] = ()
    ring_records: int = 0
    bounds: tuple[int, ...] = DURATION_BOUNDS

    @cached_property
    def slot_index(self) -> dict[str, int]:
        """Slot name -> index in the page seen as 8-byte integers."""
        first = (HEADER_BYTES + ENDPOINT_ENTRIES * ENDPOINT_BYTES) // 8
        return {name: first + position for position, name in enumerate(self.slots)}

    @cached_property
    def histogram_index(self) -> dict[str, int]:
        """Histogram name -> index of its first bucket in the page seen as 8-byte integers."""
        first = (HEADER_BYTES + ENDPOINT_ENTRIES * ENDPOINT_BYTES) // 8 + len(self.slots)
        return {name: first + position * self.histogram_slots for position, name in enumerate(self.histograms)}

    @property
    def histogram_slots(self) -> int:
        """8-byte integers a histogram takes: the finite buckets, +Inf and the sum."""
        return len(self.bounds) + 2

    @cached_property
    def ring_offset(self) -> int:
        """Byte offset of the ring, on a page boundary."""
        used = HEADER_BYTES + ENDPOINT_ENTRIES * ENDPOINT_BYTES
        used += 8 * (len(self.slots) + len(self.histograms) * self.histogram_slots)
        return -(-used // PAGE_ALIGN) * PAGE_ALIGN

    @property
    def size(self) -> int:
        """Bytes of the whole page."""
        if not self.ring_records:
            return self.ring_offset
        return self.ring_offset + RING_HEADER_BYTES + self.ring_records * RECORD_BYTES

    @cached_property
    def digest(self) -> int:
        """64-bit fingerprint of everything that decides an offset or a meaning."""
        parts = (LAYOUT_VERSION, self.role, self.slots, self.histograms, self.ring_records, self.bounds)
        return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


API: Final = Layout(
    role="api",
    slots=(
        "main_thread_id",
        "receiver_thread_id",
        "loop_tick_ns",
        "requests_received",
        "requests_inflight",
        "requests_ok",
        "requests_client_error",
        "requests_server_error",
        "requests_aborted",
        "requests_shed",
        "input_messages_sent",
        "input_bytes_sent",
        "output_messages_received",
        "output_bytes_received",
        "output_messages_rejected",
        "output_disconnects",
        "output_last_sequence",
        "output_last_received_ns",
        "prompt_tokens",
        "generated_tokens",
        "stamps_clamped",
        "gate",
        "receiver_heartbeat_ns",
        "oldest_request_ns",
        "receive_inflight",
        "receive_oldest_ns",
        "first_output_inflight",
        "first_output_oldest_ns",
        "streaming_inflight",
        "streaming_oldest_ns",
        "health_problems",
        "client_disconnects",
        "limiter_rate_milli",
        *(f"shed_{reason}" for reason in SHED_REASONS),
        *(f"errors_{name}" for name in ERROR_CLASSES),
        *(f"log_{level}" for level in LOG_LEVELS),
        *(f"core_{core}_input_sent" for core in range(MAX_CORES)),
        *(f"core_{core}_output_received" for core in range(MAX_CORES)),
    ),
    histograms=(
        "receive",
        "deserialize",
        "schedule",
        "forward",
        "output_socket.send",
        "output_socket.receive",
        "request",
        "time_to_first_token",
        "event_loop_lag",
        "output_transit",
        "output_decode",
        "input_encode",
        "input_send_call",
        "input_message_bytes",
    ),
    ring_records=4096,
)

CORE: Final = Layout(
    role="core",
    slots=(
        "main_thread_id",
        "input_thread_id",
        "output_thread_id",
        "phase",
        "phase_started_ns",
        "steps",
        "step_tokens",
        "requests_waiting",
        "requests_running",
        "input_messages_decoded",
        "input_bytes_received",
        "input_messages_rejected",
        "input_disconnects",
        "input_queue_depth",
        "output_queue_depth",
        "output_messages_sent",
        "output_bytes_sent",
        "output_last_sent_ns",
        "kv_blocks_used",
        "kv_blocks_total",
        "requests_aborted",
        "requests_failed",
        "prefix_cache_queried_tokens",
        "prefix_cache_hit_tokens",
        "input_heartbeat_ns",
        "output_heartbeat_ns",
        "input_messages_taken",
        "output_messages_queued",
        "output_oldest_ns",
        "waiting_oldest_ns",
        "running_oldest_ns",
        "step_longest_ns",
        "preemptions",
        *(f"log_{level}" for level in LOG_LEVELS),
    ),
    histograms=(
        "step",
        "forward_device",
        "input_decode",
        "input_queue_wait",
        "output_encode",
        "output_send_call",
        "output_message_bytes",
    ),
    ring_records=1024,
)

EXPORTER: Final = Layout(
    role="exporter",
    slots=(
        "heartbeat_ns",
        "source_pid",
        "source_position",
        "records_read",
        "records_lost",
        "records_unsampled",
        "spans_exported",
        "spans_dropped",
        "export_failures",
    ),
    histograms=("export",),
)

SIDECAR: Final = Layout(role="sidecar", slots=("heartbeat_ns", "samples"), ring_records=4096)

LAYOUTS: Final = {layout.role: layout for layout in (API, CORE, EXPORTER, SIDECAR)}
