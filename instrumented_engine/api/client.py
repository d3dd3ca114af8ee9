"""The API's end of the sockets: requests go out from the event loop, outputs come in on a thread of their own.

A request goes to the core with the fewest open requests (running, waiting and on their way) and stays with it. Cores
that are stuck or over a bound of the admission come last. Between equals the prompt decides, so that prompts that
begin alike find each other's blocks in the prefix cache of one core.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from instrumented_engine import wire
from instrumented_engine.api.admission import NO_CORE, Load, behind
from instrumented_engine.api.core_link import CoreLink
from instrumented_engine.api.errors import INTERNAL, TIMEOUT, TOO_LARGE, ApiError, OverloadError
from instrumented_engine.api.input_sender import InputSender
from instrumented_engine.api.receiver import Receiver
from instrumented_engine.api.stream import Stream
from instrumented_engine.api.timeline import Timeline
from instrumented_engine.config import EngineSettings
from instrumented_engine.endpoints import Endpoints
from instrumented_engine.sockets import configure
from telemetry.scoreboard import Writer
from telemetry.stages import Stamp

_PREFIX_BYTES: Final = 4 * 64
"""Of the prompt, as token ids: what decides between cores with equally much to do."""


class CoreClient:
    """Sends requests to the cores and routes their outputs to the streams."""

    def __init__(self, settings: EngineSettings, page: Writer) -> None:
        """Bind both sockets of every core.

        Raises:
            zmq.ZMQError: an endpoint cannot be bound.
        """
        self._settings = settings
        self._context = zmq.Context()
        self._sender = InputSender(page)
        self._links = [
            CoreLink(index, settings.core_name(index), self._bind(zmq.PUSH, endpoints.input), self._sender, page)
            for index, endpoints in self._endpoints()
        ]
        outputs = [self._bind(zmq.PULL, endpoints.output) for _, endpoints in self._endpoints()]
        self._receiver = Receiver(outputs, [link.streams for link in self._links], self._core_ready, page)
        self.on_ready: Callable[[], None] = lambda: None
        """Called on the event loop when a core has become ready."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called on the event loop when one has died or left."""

    def _endpoints(self) -> list[tuple[int, Endpoints]]:
        return [(core, self._settings.endpoints_of(core)) for core in range(self._settings.data_parallel_size)]

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
        return min((link.max_model_len for link in self._links if link.max_model_len is not None), default=None)

    @property
    def loads(self) -> list[Load]:
        """How far behind each core is that takes requests."""
        return [load for link in self._links if (load := link.load) is not None]

    @property
    def problems(self) -> list[str]:
        """Why no progress is made, as of the last look; empty when all is well."""
        return self._own_problems + self._named(lambda link: link.problems)

    @property
    def complaints(self) -> list[str]:
        """The same, and which cores are not running."""
        return self._own_problems + self._named(lambda link: link.complaints)

    @property
    def _own_problems(self) -> list[str]:
        return ["the thread that receives outputs has ended"] if self._receiver.failed else []

    @property
    def serving(self) -> bool:
        """Whether there is a core that takes requests and makes progress."""
        return not self._own_problems and not all(link.complaints for link in self._links)

    def _named(self, sentences: Callable[[CoreLink], list[str]]) -> list[str]:
        several = len(self._links) > 1
        return [
            f"{link.name}: {sentence}" if several else sentence for link in self._links for sentence in sentences(link)
        ]

    def submit(self, messages: Sequence[wire.Submit], timeline: Timeline) -> list[Stream]:
        """Hand the choices of one request to one core; the stream of each.

        Raises:
            ApiError: no core, all sockets push back, or a message is too large.
        """
        links = self._by_load(messages[0].prompt)
        if not links:
            raise OverloadError("no_core", NO_CORE)
        payloads = [self._encode(message) for message in messages]
        for link in links:
            streams = self._hand_over(link, messages, payloads, timeline)
            if streams:
                return streams
        raise OverloadError("input_full", "no core takes requests: the input sockets are full")

    def _by_load(self, prompt: wire.Column) -> list[CoreLink]:
        """The cores that take requests, the one that should have this prompt first."""
        ready = [link for link in self._links if link.ready]
        if len(ready) < 2:
            return ready
        favourite = zlib.crc32(prompt[:_PREFIX_BYTES])
        return sorted(ready, key=lambda link: (*self._burden(link), (link.index - favourite) % len(self._links)))

    def _burden(self, link: CoreLink) -> tuple[bool, int]:
        load = link.load
        stuck = bool(link.problems) or load is None or behind(load, self._settings) is not None
        return stuck, len(link.streams)

    def _encode(self, message: wire.Submit) -> bytes:
        payload = self._sender.encode(message)
        limit = self._settings.max_message_bytes
        if len(payload) > limit:
            raise ApiError(TOO_LARGE, f"the request takes {len(payload)} bytes, more than --max-message-bytes {limit}")
        return payload

    def _hand_over(
        self, link: CoreLink, messages: Sequence[wire.Submit], payloads: Sequence[bytes], timeline: Timeline
    ) -> list[Stream]:
        """All of them, or none: then the list is empty."""
        streams: list[Stream] = []
        timeline.core_index = link.index
        first_handed = 0
        for message, payload in zip(messages, payloads, strict=True):
            stream = link.streams[message.request_id] = Stream(message.request_id, timeline, link)
            try:
                handed = link.send(payload)
            except zmq.Again:
                link.forget(stream)
                for handed_over in streams:
                    handed_over.abort()
                return []
            streams.append(stream)
            first_handed = first_handed or handed
        timeline.stamps[Stamp.INPUT_HANDED] = first_handed
        for stream in streams:
            self._start_timer(stream)
        return streams

    def _start_timer(self, stream: Stream) -> None:
        if self._settings.request_timeout:
            loop = self._receiver.loop
            stream.timer = loop.call_later(self._settings.request_timeout, self._expire, stream)

    def _expire(self, stream: Stream) -> None:
        seconds = self._settings.request_timeout
        stream.abort()
        stream.fail(ApiError(TIMEOUT, f"the request took longer than {seconds:g} s (--request-timeout)"))

    def check_cores(self, now: float) -> None:
        """Judge every core's progress, and fail the requests of those whose process is gone."""
        for link in self._links:
            if link.look(now):
                self.on_gone()

    def fail_all(self, error: Callable[[], ApiError]) -> None:
        """End every request in flight with an error."""
        for link in self._links:
            link.fail_all(error)

    def _core_ready(self, message: wire.Ready) -> None:
        self._links[message.core_index].began(message)
        self.on_ready()


def new_request_id() -> int:
    """56 random bits."""
    return random.getrandbits(56)


def failure(finished: wire.Finished) -> ApiError:
    """The error of a request that the core, or its death, ended."""
    return ApiError(INTERNAL, finished.error or "the core ended the request with an error")
