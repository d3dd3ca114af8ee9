"""A thread that reads ZMQ sockets; both ends of the wire have one."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import zmq

from instrumented_engine.peers import PeerWatch
from instrumented_engine.sockets import message_limit
from instrumented_engine.wire import HANDOVER_BYTES, Frames, WireError, receive

_log = logging.getLogger(__name__)
_POLL_MS: Final = 200


class ReceivingThread(threading.Thread, ABC):
    """Reads messages until ``stop``. One that is no message of ours is counted and costs nothing else."""

    def __init__(
        self,
        name: str,
        sockets: Sequence[zmq.Socket[bytes]],
        slots: memoryview,
        thread_slot: int,
        heartbeat_slot: int,
        reject_slot: int,
        disconnect_slot: int,
    ) -> None:
        """The slots get this thread's native id, the time of its last look, refused messages and ended connections."""
        super().__init__(name=name, daemon=True)
        self._poller = zmq.Poller()
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._slots = slots
        self._thread_slot = thread_slot
        self._heartbeat_slot = heartbeat_slot
        self._reject_slot = reject_slot
        self._limit = message_limit(sockets[0])
        self._peers = [PeerWatch(name, socket, slots, disconnect_slot) for socket in sockets]
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ask the thread to leave within one poll."""
        self._stopping.set()

    @property
    def failed(self) -> bool:
        """Whether it has ended without being asked to."""
        return self.ident is not None and not self.is_alive() and not self._stopping.is_set()

    def run(self) -> None:
        """Until ``stop``."""
        self._slots[self._thread_slot] = threading.get_native_id()
        while not self._stopping.is_set():
            now_ns = self._slots[self._heartbeat_slot] = time.time_ns()
            for peers in self._peers:
                peers.look(now_ns)
            for socket, _ in self._poller.poll(_POLL_MS):  # one message of each, so that none waits for another
                frames = receive(socket)
                self._try(frames, time.time_ns())

    def _try(self, frames: Frames, received_ns: int) -> None:
        try:
            self._check_size(frames)
            self.take(frames, received_ns)
        except WireError as error:
            self._slots[self._reject_slot] += 1
            _log.warning("%s dropped a message: %s", self.name, error)

    def _check_size(self, frames: Frames) -> None:
        size = sum(map(len, frames))
        if self._limit is not None and size > self._limit + HANDOVER_BYTES:
            raise WireError(f"a message of {size} bytes, more than --max-message-bytes {self._limit}")

    @abstractmethod
    def take(self, frames: Frames, received_ns: int) -> None:
        """Handle one message that arrived at ``received_ns``.

        Raises:
            WireError: it is no message of ours.
        """
