"""Options that both ends of every socket between the processes share."""

from __future__ import annotations

from typing import Final

import zmq

from instrumented_engine.config import EngineSettings

HEARTBEATS_MISSED: Final = 3
"""Heartbeats without an answer after which a connection is given up, unless a time is set."""


OVERSIZE_FACTOR: Final = 4
"""Messages up to so many times the limit are received, to be refused and counted. libzmq ends the connection of a
larger frame without telling anybody, which bounds memory."""


def message_limit(socket: zmq.Socket[bytes]) -> int | None:
    """Bytes that a message on a configured socket may have; None when it was not configured."""
    largest = socket.getsockopt(zmq.MAXMSGSIZE)
    return int(largest) // OVERSIZE_FACTOR if isinstance(largest, int) and largest > 0 else None


def configure(socket: zmq.Socket[bytes], endpoint: str, settings: EngineSettings) -> None:
    """Bound what the socket holds; over a network, notice a peer that is gone.

    Heartbeats are the only option that covers both ends: TCP keep-alive does not run while data is unacknowledged, and
    TCP_USER_TIMEOUT does nothing for the end that only receives.
    """
    socket.set_hwm(settings.high_water_mark)
    socket.setsockopt(zmq.MAXMSGSIZE, OVERSIZE_FACTOR * settings.max_message_bytes)
    if settings.send_buffer_bytes:
        socket.setsockopt(zmq.SNDBUF, settings.send_buffer_bytes)
        socket.setsockopt(zmq.RCVBUF, settings.send_buffer_bytes)
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    if settings.heartbeat_interval and endpoint.startswith("tcp://"):
        timeout = settings.heartbeat_timeout or HEARTBEATS_MISSED * settings.heartbeat_interval
        socket.setsockopt(zmq.HEARTBEAT_IVL, _milliseconds(settings.heartbeat_interval))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _milliseconds(timeout))
        socket.setsockopt(zmq.HEARTBEAT_TTL, _milliseconds(timeout))  # the same wish, told to the peer


def _milliseconds(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
