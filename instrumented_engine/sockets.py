"""Options that both ends of every socket between the processes share."""

from __future__ import annotations

from typing import Final

import zmq

from instrumented_engine.config import EngineSettings

HEARTBEATS_MISSED: Final = 3
"""Heartbeats without an answer after which a connection is given up."""


def configure(socket: zmq.Socket[bytes], endpoint: str, settings: EngineSettings) -> None:
    """Bound what the socket holds; over a network, notice a peer that is gone.

    Heartbeats are the only option that covers both ends: TCP keep-alive does not run while data is unacknowledged, and
    TCP_USER_TIMEOUT does nothing for the end that only receives.
    """
    socket.set_hwm(settings.high_water_mark)
    socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
    if settings.send_buffer_bytes:
        socket.setsockopt(zmq.SNDBUF, settings.send_buffer_bytes)
        socket.setsockopt(zmq.RCVBUF, settings.send_buffer_bytes)
    if settings.heartbeat_interval and endpoint.startswith("tcp://"):
        interval = int(settings.heartbeat_interval * 1000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, interval)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEATS_MISSED * interval)
        socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEATS_MISSED * interval)
