"""What is on the page of each process: named slots, histograms and the kind of record in its ring.

A layout is data. Writer and Reader compute the same offsets from it, and its digest in the page header makes a reader
of another release refuse the page instead of reading the wrong slot.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LAYOUT_VERSION: Final = 1
HEADER_BYTES: Final = 256
ENDPOINT_BYTES: Final = 128
ENDPOINT_ENTRIES: Final = 16
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
        "output_last_sequence",
        "output_last_received_ns",
        "prompt_tokens",
        "generated_tokens",
        "stamps_clamped",
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
        "input_queue_depth",
        "output_queue_depth",
        "output_messages_sent",
        "output_bytes_sent",
        "output_last_sent_ns",
        "kv_blocks_used",
        "kv_blocks_total",
        "requests_aborted",
        "requests_failed",
    ),
    histograms=("step", "forward_device", "input_decode", "input_queue_wait", "output_encode", "output_send_call"),
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
