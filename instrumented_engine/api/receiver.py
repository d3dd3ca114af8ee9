"""The thread that reads the output sockets of all cores.

A thread, because asyncio's ZMQ sockets cost seven times the CPU and a stamp taken on the event loop would count the
loop's own lag as socket time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import zmq

from instrumented_engine import faults, wire
from instrumented_engine.api.stream import Stream
from instrumented_engine.receiving import ReceivingThread
from telemetry.layout import API
from telemetry.scoreboard import Writer

T = TypeVar("T")
_SLOT: Final = API.slot_index
_TOKENS: Final = _SLOT["generated_tokens"]
_THREAD, _HEARTBEAT, _REJECTED, _DISCONNECTS = (
    _SLOT[name]
    for name in ("receiver_thread_id", "receiver_heartbeat_ns", "output_messages_rejected", "output_disconnects")
)
_CORE_RECEIVED: Final = _SLOT["core_0_output_received"]
_BYTES, _RECEIVED, _RECEIVED_NS, _SEQUENCE = (
    _SLOT[f"output_{name}"] for name in ("bytes_received", "messages_received", "last_received_ns", "last_sequence")
)
CoreReadyCallback = Callable[[wire.Ready], None]
Delivery = tuple[Stream, list[int], wire.Finished | None, wire.TokenLogprobs | None]


class Receiver(ReceivingThread):
    """Decodes outputs and gives them to the event loop, one wake-up per message."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        sockets: Sequence[zmq.Socket[bytes]],
        streams: Sequence[dict[int, Stream]],
        on_ready: CoreReadyCallback,
        page: Writer,
    ) -> None:
        """``streams`` are the open requests of each core: what a core says about those of another one is left alone."""
        name = "api-output-receiver"
        super().__init__(name, sockets, page.slots, _THREAD, _HEARTBEAT, _REJECTED, _DISCONNECTS)
        self._streams = streams
        self._on_ready = on_ready
        self._transit = page.histogram("output_transit")
        self._decode = page.histogram("output_decode")

    def take(self, frames: wire.Frames, received_ns: int) -> None:
        """Decode one message and wake the event loop for what is in it."""
        faults.die("receiver")
        message, handover = wire.decode_output(frames)
        if message.core_index >= len(self._streams):
            raise wire.WireError(f"a message of core {message.core_index}, and there are {len(self._streams)}")
        if isinstance(message, wire.Ready):
            self._count(frames, handover, received_ns, message.core_index)
            self._call(self._on_ready, message)
            return
        deliveries = self._route(message, handover)
        self._count(frames, handover, received_ns, message.core_index)
        faults.stall("rest")
        if deliveries:
            self._call(_deliver, deliveries)

    def _route(self, message: wire.Outputs, handover: wire.OutputHandover) -> list[Delivery]:
        tokens = wire.unpack_tokens(message.tokens)
        finished = {end.request_id: end for end in message.finished}
        produced = dict.fromkeys(finished, -1) | dict(zip(wire.unpack_ids(message.request_ids), tokens, strict=True))
        logprobs = _by_request(message) if message.logprobs is not None else {}
        decoded_ns = time.time_ns()
        streams = self._streams[message.core_index]
        deliveries: list[Delivery] = []
        for request_id, token in produced.items():
            stream = streams.get(request_id)
            if stream is None:  # aborted, or of a core before this one
                continue
            end = finished.get(request_id)
            stream.timeline.output_received(handover, decoded_ns)
            if end is not None:
                stream.timeline.finished(end)
            deliveries.append((stream, [token] if token >= 0 else [], end, logprobs.get(request_id)))
        self._slots[_TOKENS] += len(tokens)
        return deliveries

    def _count(self, frames: wire.Frames, handover: wire.OutputHandover, received_ns: int, core_index: int) -> None:
        self._transit.observe(received_ns - handover.handed_ns)
        self._decode.observe(time.time_ns() - received_ns)
        self._slots[_BYTES] += len(frames[0])
        self._slots[_RECEIVED_NS] = received_ns
        self._slots[_SEQUENCE] = handover.sequence
        self._slots[_CORE_RECEIVED + core_index] = handover.sequence
        self._slots[_RECEIVED] += 1

    def _call(self, function: Callable[[T], None], argument: T) -> None:
        try:
            self.loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the loop is closed: the process is ending
            self._stopping.set()


def _deliver(deliveries: list[Delivery]) -> None:
    for stream, tokens, finished, logprobs in deliveries:
        stream.put(tokens, finished, logprobs)


def _by_request(message: wire.Outputs) -> dict[int, wire.TokenLogprobs]:
    """Raises WireError when a row is outside the message."""
    ids = wire.unpack_ids(message.request_ids)
    rows = wire.unpack_logprobs(message.logprobs) if message.logprobs is not None else {}
    if any(not 0 <= row < len(ids) for row in rows):
        raise wire.WireError("a log probability belongs to no token of its message")
    return {ids[row]: found for row, found in rows.items()}
