"""The API's end of the sockets: requests go out from the event loop, outputs come in on a thread of their own.

A thread, because asyncio's ZMQ sockets cost seven times the CPU and a stamp taken on the event loop would count the
loop's own lag as socket time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import zmq

from instrumented_engine import wire
from instrumented_engine.api.errors import INTERNAL, OVERLOAD, TOO_LARGE, ApiError
from instrumented_engine.api.timeline import Timeline
from instrumented_engine.config import EngineSettings
from instrumented_engine.receiving import ReceivingThread
from telemetry.layout import API
from telemetry.scoreboard import PageError, Reader, Writer
from telemetry.stages import Stamp

_log = logging.getLogger(__name__)
T = TypeVar("T")
_SLOT: Final = API.slot_index
_THREAD, _REJECTED, _TOKENS = (
    _SLOT[name] for name in ("receiver_thread_id", "output_messages_rejected", "generated_tokens")
)
_BYTES, _RECEIVED, _RECEIVED_NS, _SEQUENCE = (
    _SLOT[f"output_{name}"] for name in ("bytes_received", "messages_received", "last_received_ns", "last_sequence")
)
CoreReadyCallback = Callable[[wire.Ready], None]
Delivery = tuple["Stream", list[int], wire.Finished | None]


class Stream:
    """What one request has received and its handler has not taken yet. Lives on the event loop."""

    def __init__(self, request_id: int, timeline: Timeline) -> None:
        self.request_id = request_id
        self.timeline = timeline
        self._tokens: list[int] = []
        self._finished: wire.Finished | None = None
        self._changed = asyncio.Event()

    def put(self, tokens: list[int], finished: wire.Finished | None) -> None:
        """Add what arrived."""
        self._tokens += tokens
        self._finished = self._finished or finished
        self._changed.set()

    async def take(self) -> tuple[list[int], wire.Finished | None]:
        """Everything since the last call; waits for something."""
        await self._changed.wait()
        self._changed.clear()
        tokens, self._tokens = self._tokens, []
        return tokens, self._finished


class CoreClient:
    """Sends requests to the core and routes its outputs to their streams."""

    def __init__(self, settings: EngineSettings, page: Writer) -> None:
        """Bind both sockets.

        Raises:
            zmq.ZMQError: an endpoint cannot be bound.
        """
        self._page = page
        self._limit = settings.max_message_bytes
        self._context = zmq.Context()
        self._input = self._bind(zmq.PUSH, settings.input_endpoint, settings)
        self._streams: dict[int, Stream] = {}
        self._core: wire.Ready | None = None
        self._core_page: Reader | None = None
        output = self._bind(zmq.PULL, settings.output_endpoint, settings)
        self._receiver = Receiver(output, self._streams, self._core_ready, page)

    def _bind(self, kind: int, endpoint: str, settings: EngineSettings) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(settings.high_water_mark)
        socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
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
        return self._core.max_model_len if self._core else None

    def submit(self, message: wire.Submit, timeline: Timeline) -> Stream:
        """Hand a request to the input socket.

        Raises:
            ApiError: no core, the socket pushes back, or the message is too large.
        """
        if self._core is None:
            raise ApiError(
                OVERLOAD, "the engine has no running core: it is starting, or it died and is being restarted"
            )
        payload = wire.encode(message)
        if len(payload) > self._limit:
            raise ApiError(
                TOO_LARGE, f"the request takes {len(payload)} bytes, more than --max-message-bytes {self._limit}"
            )
        stream = self._streams[message.request_id] = Stream(message.request_id, timeline)
        try:
            timeline.stamps[Stamp.INPUT_HANDED] = self._send(payload)
        except zmq.Again:
            self.forget(stream)
            timeline.stamps[Stamp.INPUT_HANDED] = 0
            raise ApiError(OVERLOAD, "the core does not take requests: its input socket is full") from None
        return stream

    def abort(self, stream: Stream) -> None:
        """Tell the core that nobody waits for this request any more."""
        if self._streams.pop(stream.request_id, None) is not None and self._core is not None:
            try:
                self._send(wire.encode(wire.Abort([stream.request_id])))
            except zmq.Again:
                _log.warning("the input socket is full: an abort was dropped, its request runs to its end")

    def forget(self, stream: Stream) -> None:
        """The request is over."""
        self._streams.pop(stream.request_id, None)

    def check_core(self) -> None:
        """Fail everything in flight when the core's page says that its process is gone."""
        if self._core_page is None or self._core_page.owner() is not None:
            return
        _log.error("the core process is gone; failing %d requests", len(self._streams))
        self._core_page.close()
        self._core_page = self._core = None
        for stream in list(self._streams.values()):
            stream.put([], wire.Finished(stream.request_id, "error", [], (0, 0, 0), 0, "the core process died"))
        self._streams.clear()

    def _core_ready(self, message: wire.Ready) -> None:
        try:
            self._core_page = Reader(Path(message.page))
        except PageError as error:
            _log.warning("cannot watch the core: %s", error)
        self._core = message
        _log.info("the core is ready (pid %d)", message.pid)

    def _send(self, payload: bytes) -> int:
        frames, handed_ns = wire.input_frames(payload)
        self._input.send_multipart(frames, zmq.NOBLOCK)
        self._page["input_messages_sent"] += 1
        self._page["input_bytes_sent"] += len(payload)
        return handed_ns


def new_request_id() -> int:
    """56 random bits."""
    return random.getrandbits(56)


def failure(finished: wire.Finished) -> ApiError:
    """The error of a request that the core, or its death, ended."""
    return ApiError(INTERNAL, finished.error or "the core ended the request with an error")


class Receiver(ReceivingThread):
    """Decodes outputs and gives them to the event loop, one wake-up per message."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self, socket: zmq.Socket[bytes], streams: dict[int, Stream], on_ready: CoreReadyCallback, page: Writer
    ) -> None:
        super().__init__("api-output-receiver", socket, page.slots, _THREAD, _REJECTED)
        self._streams = streams
        self._on_ready = on_ready
        self._transit = page.histogram("output_transit")
        self._decode = page.histogram("output_decode")

    def take(self, frames: list[bytes], received_ns: int) -> None:
        """Decode one message and wake the event loop for what is in it."""
        message, handover = wire.decode_output(frames)
        if isinstance(message, wire.Ready):
            self._count(frames, handover, received_ns)
            self._call(self._on_ready, message)
            return
        deliveries = self._route(message, handover)
        self._count(frames, handover, received_ns)
        if deliveries:
            self._call(_deliver, deliveries)

    def _route(self, message: wire.Outputs, handover: wire.OutputHandover) -> list[Delivery]:
        tokens = wire.unpack_tokens(message.tokens)
        finished = {end.request_id: end for end in message.finished}
        produced = dict.fromkeys(finished, -1) | dict(zip(wire.unpack_ids(message.request_ids), tokens, strict=True))
        decoded_ns = time.time_ns()
        deliveries: list[Delivery] = []
        for request_id, token in produced.items():
            stream = self._streams.get(request_id)
            if stream is None:  # aborted, or of a core before this one
                continue
            end = finished.get(request_id)
            stream.timeline.output_received(handover, decoded_ns)
            if end is not None:
                stream.timeline.finished(end)
            deliveries.append((stream, [token] if token >= 0 else [], end))
        self._slots[_TOKENS] += len(tokens)
        return deliveries

    def _count(self, frames: list[bytes], handover: wire.OutputHandover, received_ns: int) -> None:
        self._transit.observe(received_ns - handover.handed_ns)
        self._decode.observe(time.time_ns() - received_ns)
        self._slots[_BYTES] += len(frames[0])
        self._slots[_RECEIVED_NS] = received_ns
        self._slots[_SEQUENCE] = handover.sequence
        self._slots[_RECEIVED] += 1

    def _call(self, function: Callable[[T], None], argument: T) -> None:
        try:
            self.loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the loop is closed: the process is ending
            self._stopping.set()


def _deliver(deliveries: list[Delivery]) -> None:
    for stream, tokens, finished in deliveries:
        stream.put(tokens, finished)
