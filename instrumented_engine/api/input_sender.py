"""Encodes messages for the cores and hands them to their input sockets, and counts both."""

from __future__ import annotations

import time
from typing import Final

import zmq

from instrumented_engine import wire
from telemetry.layout import API, BYTE_BOUNDS
from telemetry.scoreboard import HistogramWriter, Writer

_SENT: Final = API.slot_index["input_messages_sent"]
_BYTES: Final = API.slot_index["input_bytes_sent"]


class InputSender:
    """One for all cores, for each slot has one writer. Used by the event loop's thread only."""

    def __init__(self, page: Writer) -> None:
        self._slots = page.slots
        self._encode_time = page.histogram("input_encode")
        self._send_time = page.histogram("input_send_call")
        self._sizes = HistogramWriter(page.slots, API.histogram_index["input_message_bytes"], BYTE_BOUNDS)

    def encode(self, message: wire.InputMessage) -> bytes:
        """The payload."""
        started_ns = time.perf_counter_ns()
        payload = wire.encode(message)
        self._encode_time.observe(time.perf_counter_ns() - started_ns)
        self._sizes.observe(len(payload))
        return payload

    def send(self, socket: zmq.Socket[bytes], payload: bytes) -> int:
        """Hand a payload over without waiting; the hand-over stamp.

        Raises:
            zmq.Again: the socket is full, or nobody is connected.
        """
        frames, handed_ns = wire.input_frames(payload)
        started_ns = time.perf_counter_ns()
        wire.send(socket, frames, zmq.NOBLOCK)
        self._send_time.observe(time.perf_counter_ns() - started_ns)
        self._slots[_SENT] += 1
        self._slots[_BYTES] += len(payload)
        return handed_ns
