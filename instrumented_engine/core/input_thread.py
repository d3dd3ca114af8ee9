"""The thread that turns frames from the input socket into messages on the input queue."""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue

import zmq

from instrumented_engine import wire
from telemetry.layout import CORE
from telemetry.scoreboard import Writer

_log = logging.getLogger(__name__)
_POLL_MS = 200
_SLOT = CORE.slot_index
_THREAD, _DEPTH = _SLOT["input_thread_id"], _SLOT["input_queue_depth"]
_BYTES, _DECODED = _SLOT["input_bytes_received"], _SLOT["input_messages_decoded"]
_REJECTED = _SLOT["input_messages_rejected"]

InputQueue = SimpleQueue[tuple[wire.InputMessage, int] | None]
"""Messages with the stamp of when they were queued; None wakes the loop for shutdown."""


class InputThread(threading.Thread):
    """Decodes and queues; a message it cannot decode is counted and costs nothing else."""

    def __init__(self, socket: zmq.Socket[bytes], queue: InputQueue, page: Writer) -> None:
        super().__init__(name="core-input", daemon=True)
        self._socket = socket
        self._queue = queue
        self._slots = page.slots
        self._decode_time = page.histogram("input_decode")
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ask the thread to leave within one poll."""
        self._stopping.set()

    def run(self) -> None:
        """Until ``stop``."""
        self._slots[_THREAD] = threading.get_native_id()
        while not self._stopping.is_set():
            if self._socket.poll(_POLL_MS):
                self._receive()

    def _receive(self) -> None:
        frames = self._socket.recv_multipart()
        started_ns = time.time_ns()
        try:
            message = wire.decode_input(frames)
        except wire.WireError as error:
            self._slots[_REJECTED] += 1
            _log.warning("dropped an input message: %s", error)
            return
        queued_ns = time.time_ns()
        self._decode_time.observe(queued_ns - started_ns)
        self._queue.put((message, queued_ns))
        self._slots[_BYTES] += sum(map(len, frames))
        self._slots[_DECODED] += 1
        self._slots[_DEPTH] = self._queue.qsize()
