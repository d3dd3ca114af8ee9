"""Counts the connections of a ZMQ socket that end.

libzmq itself ends the connection of a peer that sends a frame above ``ZMQ_MAXMSGSIZE`` or does not speak ZMTP; no
message reaches anybody. Its socket monitor reports the end but not the reason, so every end is counted: only the
engine's own processes belong on these sockets, and one of them that leaves is an event as well.
"""

from __future__ import annotations

import logging
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

_log = logging.getLogger(__name__)
_INTERVAL_NS: Final = 200_000_000


class PeerWatch:
    """Reads the monitor of one socket, in the thread that reads the socket."""

    def __init__(self, name: str, socket: zmq.Socket[bytes], slots: memoryview, slot: int) -> None:
        """``slot`` gets the number of ended connections."""
        self._name = name
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._largest = socket.getsockopt(zmq.MAXMSGSIZE)
        self._slots = slots
        self._slot = slot
        self._due_ns = 0

    def look(self, now_ns: int) -> None:
        """Count what ended since the last look; five times a second is enough."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _INTERVAL_NS
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._slots[self._slot] += 1
            _log.info(
                "%s: a connection ended: its process left, or sent a frame above %s bytes", self._name, self._largest
            )
