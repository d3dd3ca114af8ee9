"""The API's end of one core: its input socket, the requests it has, and its process as long as it lives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import zmq

from instrumented_engine import wire
from instrumented_engine.api.admission import Load
from instrumented_engine.api.core_process import CoreProcess
from instrumented_engine.api.errors import INTERNAL, ApiError
from instrumented_engine.api.input_sender import InputSender
from instrumented_engine.api.stream import Stream
from telemetry.layout import CORE
from telemetry.scoreboard import Writer

_log = logging.getLogger(__name__)
_NOT_RUNNING: Final = "not running: it is starting, or it died and is being restarted"


class CoreLink:
    """One of the cores. It outlives the core's processes; lives on the event loop."""

    def __init__(self, index: int, name: str, socket: zmq.Socket[bytes], sender: InputSender, page: Writer) -> None:
        self.index = index
        self.name = name
        self._called = f"the {name}" if name == CORE.role else name
        self.streams: dict[int, Stream] = {}
        """Its open requests. The receiver thread looks them up."""
        self._socket = socket
        self._sender = sender
        self._page = page
        self._process: CoreProcess | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self._process is not None

    @property
    def max_model_len(self) -> int | None:
        """Token limit of one request; None while it takes none."""
        return self._process.ready.max_model_len if self._process else None

    @property
    def load(self) -> Load | None:
        """How far behind it is; None while it takes no requests."""
        process = self._process
        return Load(process.waiting, process.output_depth, process.output_age) if process else None

    @property
    def problems(self) -> list[str]:
        """Why it makes no progress, as of the last look; empty when it does."""
        return self._process.problems if self._process else []

    @property
    def complaints(self) -> list[str]:
        """All that keeps it from serving."""
        return self.problems if self.ready else [_NOT_RUNNING]

    def send(self, payload: bytes) -> int:
        """Hand a message to the input socket; the hand-over stamp.

        Raises:
            zmq.Again: the socket is full, or nobody is connected.
        """
        handed_ns = self._sender.send(self._socket, payload)
        if self._process is not None:
            self._process.count_sent()
        return handed_ns

    def abort(self, stream: Stream) -> None:
        """Tell the core to end a request."""
        if self._process is None:
            return
        try:
            self.send(self._sender.encode(wire.Abort([stream.request_id])))
        except zmq.Again:
            _log.warning("the input socket of %s is full: an abort was dropped", self._called)

    def began(self, ready: wire.Ready) -> None:
        """A new process takes requests."""
        if self._process is not None:
            self._lost(self._process)
        self._process = CoreProcess(ready, self._page)
        _log.info("%s is ready (pid %d)", self._called, ready.pid)

    def look(self, now: float) -> bool:
        """Judge its progress; fail its requests when its process is gone. Whether it is gone since the last look."""
        process = self._process
        if process is None:
            return False
        if process.alive:
            process.look(now)
            return False
        self._lost(process)
        return True

    def _lost(self, process: CoreProcess) -> None:
        how = "was stopped" if process.left_on_purpose else "died"
        level = logging.ERROR if self.streams or how == "died" else logging.INFO
        _log.log(level, "the process of %s %s; failing %d requests", self._called, how, len(self.streams))
        process.close()
        self._process = None
        self.fail_all(lambda: ApiError(INTERNAL, f"the core process {how}"))

    def fail_all(self, error: Callable[[], ApiError]) -> None:
        """End every open request with an error."""
        for stream in list(self.streams.values()):
            if self.forget(stream):
                self.abort(stream)
            stream.fail(error())

    def forget(self, stream: Stream) -> bool:
        """The request is over; whether it was still known."""
        if stream.timer is not None:
            stream.timer.cancel()
        return self.streams.pop(stream.request_id, None) is not None
