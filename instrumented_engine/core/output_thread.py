"""The thread that turns messages on the output queue into frames on the output socket."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

import zmq

from instrumented_engine import faults, wire
from telemetry.layout import BYTE_BOUNDS, CORE
from telemetry.scoreboard import HistogramWriter, Writer

_SLOT = CORE.slot_index
_THREAD, _DEPTH = _SLOT["output_thread_id"], _SLOT["output_queue_depth"]
_HEARTBEAT, _OLDEST = _SLOT["output_heartbeat_ns"], _SLOT["output_oldest_ns"]
_BYTES, _SENT_NS, _SENT = _SLOT["output_bytes_sent"], _SLOT["output_last_sent_ns"], _SLOT["output_messages_sent"]

OutputQueue = SimpleQueue[tuple[wire.OutputMessage, int] | None]
"""Messages with the stamp of when they were queued; None ends the thread."""

SEND_RETRY_MS = 200
_HEARTBEAT_SECONDS = 0.2


class OutputThread(threading.Thread):
    """Encodes and sends. While the API process does not read, it waits here and the output queue grows."""

    def __init__(self, socket: zmq.Socket[bytes], queue: OutputQueue, page: Writer) -> None:
        super().__init__(name="core-output", daemon=True)
        self._socket = socket
        self._queue = queue
        self._slots = page.slots
        self._encode_time = page.histogram("output_encode")
        self._send_time = page.histogram("output_send_call")
        self._sizes = HistogramWriter(page.slots, CORE.histogram_index["output_message_bytes"], BYTE_BOUNDS)
        self._stopping = threading.Event()
        self._sequence = 0

    def stop(self) -> None:
        """End the thread after what is queued, or at the next retry when nobody reads."""
        self._stopping.set()
        self._queue.put(None)

    def run(self) -> None:
        """Until ``stop``."""
        self._slots[_THREAD] = threading.get_native_id()
        while (item := self._next()) is not None:
            faults.die("output_thread")
            message, queued_ns = item
            self._slots[_OLDEST] = queued_ns
            self._slots[_DEPTH] = self._queue.qsize()
            started_ns = time.perf_counter_ns()
            faults.stall("encode")
            payload = wire.encode(message)
            self._encode_time.observe(time.perf_counter_ns() - started_ns)
            self._sizes.observe(len(payload))
            if not self._send(payload, queued_ns):
                return  # nobody reads, and each message that is left would be waited for as long
            self._slots[_OLDEST] = 0

    def _next(self) -> tuple[wire.OutputMessage, int] | None:
        """The next message, with a heartbeat while there is none."""
        while True:
            self._slots[_HEARTBEAT] = time.time_ns()
            try:
                return self._queue.get(timeout=_HEARTBEAT_SECONDS)
            except Empty:
                continue

    def _send(self, payload: bytes, queued_ns: int) -> bool:
        """Whether it was sent before this thread was asked to end."""
        self._sequence += 1
        started_ns = time.perf_counter_ns()
        while not self._try_send(payload, queued_ns):
            if self._stopping.is_set():
                return False
        self._send_time.observe(time.perf_counter_ns() - started_ns)
        self._slots[_BYTES] += len(payload)
        self._slots[_SENT_NS] = time.time_ns()
        self._slots[_SENT] = self._sequence
        return True

    def _try_send(self, payload: bytes, queued_ns: int) -> bool:
        """One attempt of SEND_RETRY_MS; the hand-over is stamped anew each time."""
        try:
            wire.send(self._socket, wire.output_frames(payload, self._sequence, queued_ns))
        except zmq.Again:
            return False
        return True
