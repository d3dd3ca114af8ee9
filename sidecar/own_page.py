"""The sidecar's own page: kernel samples every 100 ms, which the span exporter puts on the spans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from sidecar.collectors import log
from sidecar.snapshot import ConnectionSample, ListenerSample, UnixSample
from telemetry.layout import SIDECAR
from telemetry.records import KernelSample
from telemetry.scoreboard import Liveness, PageError, Reader, Writer, pages

_RETRY_SECONDS: Final = 5.0
_LOOP_TICK_NS: Final = 100_000_000


class OwnPage:
    """Writes samples when the runtime directory is there and writable, and drops them when it is not.

    The directory is never created here: made by another user than the engine's it would lock the engine out.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Writer | None = None
        self._retry_at = 0.0
        self._complained = False

    def open(self, now: float) -> None:
        """Create the page unless it is there, at most every few seconds."""
        if self._writer is not None or now < self._retry_at or not self._directory.is_dir():
            return
        self._retry_at = now + _RETRY_SECONDS
        try:
            self._writer = Writer(self._directory, SIDECAR)
        except PageError as error:
            if not self._complained:
                log.warning("%s: spans will carry no kernel facts", error)
            self._complained = True
            return
        self._ring = self._writer.ring()
        self._remove_dead(self._writer.path)

    def _remove_dead(self, own: Path) -> None:
        for path in pages(self._directory):
            if path != own and path.name.startswith(f"{SIDECAR.role}-"):
                try:
                    reader = Reader(path)
                except PageError:
                    continue
                dead = reader.liveness() in (Liveness.DEAD, Liveness.EXITED)
                reader.close()
                if dead:
                    path.unlink(missing_ok=True)

    def write(self, sample: KernelSample) -> None:
        """Append one sample and tell the heartbeat."""
        if self._writer is not None:
            self._ring.append(sample.pack())
            self._writer["samples"] += 1
            self._writer["heartbeat_ns"] = sample.wall_ns

    def close(self) -> None:
        """Leave on purpose."""
        if self._writer is not None:
            self._writer.close()


def kernel_sample(
    wall_ns: int,
    listeners: Iterable[ListenerSample],
    queues: Sequence[UnixSample | ConnectionSample],
    frozen_roles: Collection[str],
    api_ticks_ns: Iterable[int],
) -> KernelSample:
    """One sample for the spans.

    Args:
        wall_ns: now.
        listeners: all of the engine's.
        queues: its sockets, by role.
        frozen_roles: roles of which a process is stopped.
        api_ticks_ns: when the event loop of each API process ran last; 0 where it has not yet.
    """
    http = [sample for sample in listeners if sample.role == "http"]
    return KernelSample(
        wall_ns,
        sum(sample.depth for sample in http),
        sum(sample.limit for sample in http),
        *_queued(queues, "input"),
        *_queued(queues, "output"),
        ("api" in frozen_roles) | ("core" in frozen_roles) << 1,
        max((max(wall_ns - tick - _LOOP_TICK_NS, 0) // 1_000_000 for tick in api_ticks_ns if tick), default=0),
    )


def _queued(queues: Sequence[UnixSample | ConnectionSample], role: str) -> tuple[int, int]:
    found = [sample for sample in queues if sample.role == role]
    return sum(sample.receive_bytes for sample in found), sum(sample.send_bytes for sample in found)
