"""The API's end of the sockets: requests go out from the event loop, outputs come in on a thread of their own."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

import zmq

from instrumented_engine import wire
from instrumented_engine.api.admission import NO_CORE, Load
from instrumented_engine.api.core_link import CoreLink
from instrumented_engine.api.errors import INTERNAL, TIMEOUT, TOO_LARGE, ApiError, OverloadError
from instrumented_engine.api.receiver import Receiver
from instrumented_engine.api.stream import Stream
from instrumented_engine.api.timeline import Timeline
from instrumented_engine.config import EngineSettings
from instrumented_engine.sockets import configure
from telemetry.layout import API, BYTE_BOUNDS
from telemetry.scoreboard import HistogramWriter, Writer
from telemetry.stages import Stamp

_log = logging.getLogger(__name__)
_INPUT_SENT: Final = API.slot_index["input_messages_sent"]
_INPUT_BYTES: Final = API.slot_index["input_bytes_sent"]


class CoreClient:
    """Sends requests to the core and routes its outputs to their streams."""

    def __init__(self, settings: EngineSettings, page: Writer) -> None:
        """Bind both sockets.

        Raises:
            zmq.ZMQError: an endpoint cannot be bound.
        """
        self._page = page
        self._slots = page.slots
        self._settings = settings
        self._context = zmq.Context()
        self._input = self._bind(zmq.PUSH, settings.input_endpoint)
        self._streams: dict[int, Stream] = {}
        self._core: CoreLink | None = None
        self._encode_time = page.histogram("input_encode")
        self._send_time = page.histogram("input_send_call")
        self._sizes = HistogramWriter(page.slots, API.histogram_index["input_message_bytes"], BYTE_BOUNDS)
        output = self._bind(zmq.PULL, settings.output_endpoint)
        self._receiver = Receiver(output, self._streams, self._core_ready, page)
        self.on_ready: Callable[[], None] = lambda: None
        """Called on the event loop when a core has become ready."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called on the event loop when it has died or left."""

    def _bind(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        configure(socket, endpoint, self._settings)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        return socket

    def start(self) -> None:
        """Start receiving; call it on the running event loop."""
        self._receiver.loop = asyncio.get_running_loop()
        self._receiver.start()

    def close(self) -> None:
        """Stop the receiver thread and the sockets."""
        self._receiver.stop()
        self._receiver.join(2)
        self._context.destroy(linger=0)

    @property
    def max_model_len(self) -> int | None:
        """Token limit of one request; None while there is no core."""
        return self._core.ready.max_model_len if self._core else None

    @property
    def load(self) -> Load | None:
        """How far behind the core is; None while there is none."""
        core = self._core
        return Load(core.waiting, core.output_depth, core.output_age) if core else None

    @property
    def problems(self) -> list[str]:
        """Why the core makes no progress, as of the last look; empty when it does."""
        own = ["the thread that receives outputs has ended"] if self._receiver.failed else []
        return own + (self._core.problems if self._core else [])

    def submit(self, message: wire.Submit, timeline: Timeline) -> Stream:
        """Hand a request to the input socket.

        Raises:
            ApiError: no core, the socket pushes back, or the message is too large.
        """
        if self._core is None:
            raise OverloadError("no_core", NO_CORE)
        payload = self._encode(message)
        limit = self._settings.max_message_bytes
        if len(payload) > limit:
            raise ApiError(TOO_LARGE, f"the request takes {len(payload)} bytes, more than --max-message-bytes {limit}")
        stream = self._streams[message.request_id] = Stream(message.request_id, timeline)
        try:
            timeline.stamps[Stamp.INPUT_HANDED] = self._send(payload)
        except zmq.Again:
            self.forget(stream)
            timeline.stamps[Stamp.INPUT_HANDED] = 0
            raise OverloadError("input_full", "the core does not take requests: its input socket is full") from None
        self._start_timer(stream)
        return stream

    def _start_timer(self, stream: Stream) -> None:
        if self._settings.request_timeout:
            loop = self._receiver.loop
            stream.timer = loop.call_later(self._settings.request_timeout, self._expire, stream)

    def _expire(self, stream: Stream) -> None:
        seconds = self._settings.request_timeout
        self.abort(stream)
        stream.fail(ApiError(TIMEOUT, f"the request took longer than {seconds:g} s (--request-timeout)"))

    def abort(self, stream: Stream) -> None:
        """Tell the core that nobody waits for this request any more."""
        if self.forget(stream):
            self.stop(stream)

    def stop(self, stream: Stream) -> None:
        """Tell the core to end a request whose answer is complete; what the core knows of it still comes home."""
        if self._core is None:
            return
        try:
            self._send(self._encode(wire.Abort([stream.request_id])))
        except zmq.Again:
            _log.warning("the input socket is full: an abort was dropped, its request runs to its end")

    def forget(self, stream: Stream) -> bool:
        """The request is over; whether it was still known."""
        if stream.timer is not None:
            stream.timer.cancel()
        return self._streams.pop(stream.request_id, None) is not None

    def check_core(self, now: float) -> None:
        """Judge the core's progress, and fail everything in flight when its process is gone."""
        if self._core is None:
            return
        if self._core.alive:
            self._core.look(now)
            return
        how = "was stopped" if self._core.left_on_purpose else "died"
        level = logging.ERROR if self._streams or how == "died" else logging.INFO
        _log.log(level, "the core process %s; failing %d requests", how, len(self._streams))
        self._core.close()
        self._core = None
        self.on_gone()
        self.fail_all(lambda: ApiError(INTERNAL, f"the core process {how}"))

    def fail_all(self, error: Callable[[], ApiError]) -> None:
        """End every request in flight with an error."""
        for stream in list(self._streams.values()):
            self.abort(stream)
            stream.fail(error())

    def _core_ready(self, message: wire.Ready) -> None:
        if self._core is not None:
            self._core.close()
        self._core = CoreLink(message, self._page)
        _log.info("the core is ready (pid %d)", message.pid)
        self.on_ready()

    def _encode(self, message: wire.InputMessage) -> bytes:
        started_ns = time.perf_counter_ns()
        payload = wire.encode(message)
        self._encode_time.observe(time.perf_counter_ns() - started_ns)
        self._sizes.observe(len(payload))
        return payload

    def _send(self, payload: bytes) -> int:
        frames, handed_ns = wire.input_frames(payload)
        started_ns = time.perf_counter_ns()
        self._input.send_multipart(frames, zmq.NOBLOCK, copy=len(payload) < wire.ZERO_COPY_BYTES)
        self._send_time.observe(time.perf_counter_ns() - started_ns)
        self._slots[_INPUT_SENT] += 1
        self._slots[_INPUT_BYTES] += len(payload)
        if self._core is not None:
            self._core.count_sent()
        return handed_ns


def new_request_id() -> int:
    """56 random bits."""
    return random.getrandbits(56)


def failure(finished: wire.Finished) -> ApiError:
    """The error of a request that the core, or its death, ended."""
    return ApiError(INTERNAL, finished.error or "the core ended the request with an error")
