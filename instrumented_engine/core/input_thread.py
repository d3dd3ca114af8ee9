"""The thread that turns frames from the input socket into messages on the input queue."""

from __future__ import annotations

import time
from queue import SimpleQueue

import zmq

from instrumented_engine import faults, wire
from instrumented_engine.receiving import ReceivingThread
from telemetry.layout import CORE
from telemetry.scoreboard import Writer

_SLOT = CORE.slot_index
_THREAD, _DEPTH = _SLOT["input_thread_id"], _SLOT["input_queue_depth"]
_BYTES, _DECODED = _SLOT["input_bytes_received"], _SLOT["input_messages_decoded"]
_REJECTED, _HEARTBEAT = _SLOT["input_messages_rejected"], _SLOT["input_heartbeat_ns"]
_DISCONNECTS = _SLOT["input_disconnects"]

InputQueue = SimpleQueue[tuple[wire.InputMessage, int] | None]
"""Messages with the stamp of when they were queued; None wakes the loop for shutdown."""


class InputThread(ReceivingThread):
    """Decodes and queues."""

    def __init__(self, socket: zmq.Socket[bytes], queue: InputQueue, page: Writer) -> None:
        super().__init__("core-input", [socket], page.slots, _THREAD, _HEARTBEAT, _REJECTED, _DISCONNECTS)
        self._queue = queue
        self._decode_time = page.histogram("input_decode")

    def take(self, frames: wire.Frames, received_ns: int) -> None:
        """Decode one message and queue it."""
        faults.die("input_thread")
        message = wire.decode_input(frames)
        queued_ns = time.time_ns()
        self._decode_time.observe(queued_ns - received_ns)
        self._queue.put((message, queued_ns))
        self._slots[_BYTES] += sum(map(len, frames))
        self._slots[_DECODED] += 1
        self._slots[_DEPTH] = self._queue.qsize()
