"""The engine's GPUs, read by a thread of their own: a GPU that is unwell can hold an NVML call for many seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from sidecar.facts import GpuSample
from sidecar.kernel.nvml import Gpu, Nvml, NvmlError
from sidecar.target import Member
from sidecar.totals import RunningTotal

_READ_SECONDS: Final = 1.0
_FRESH_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 60.0


class GpuReader:
    """Keeps the last reading of all GPUs, as long as it is fresh."""

    def __init__(self, load: Callable[[], Nvml] = Nvml, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._taken: tuple[float, tuple[Gpu, ...]] = (-_FRESH_SECONDS, ())

    def start(self) -> None:
        """Begin to read; while there is no library or no driver, look for one now and then."""
        threading.Thread(target=self._run, name="gpu", daemon=True).start()

    def stop(self) -> None:
        """Stop reading, without waiting for a call that is under way."""
        self._stop.set()

    def latest(self) -> tuple[Gpu, ...]:
        """The last reading; empty without GPUs, and when the driver has not answered for some seconds."""
        taken, gpus = self._taken
        return gpus if self._monotonic() - taken < _FRESH_SECONDS else ()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(NvmlError):
                self._read_until_it_fails(self._load())
            self._stop.wait(_RETRY_SECONDS)

    def _read_until_it_fails(self, nvml: Nvml) -> None:
        try:
            while not self._stop.is_set():
                started = self._monotonic()
                self._taken = (started, nvml.read())
                self._stop.wait(_READ_SECONDS)
        finally:
            nvml.close()


class GpuTracker:
    """Sums the GPUs that the engine uses."""

    def __init__(self, read: Callable[[], tuple[Gpu, ...]]) -> None:
        self._read = read
        self._energy = RunningTotal()
        self._first_energy: dict[int, float] = {}

    def collect(self, members: Sequence[Member]) -> GpuSample | None:
        """The GPUs of the engine's processes, or all of them while none of its processes is seen on one."""
        gpus = self._read()
        labels = {member.pid: member.label for member in members}
        own = [gpu for gpu in gpus if any(pid in labels for pid, _ in gpu.processes)] or list(gpus)
        if not own:
            return None
        used = [gpu.utilization for gpu in own if gpu.utilization is not None]
        return GpuSample(
            gpus=len(own),
            utilization=sum(used) / len(used) if used else None,
            memory_used_bytes=_total_bytes(gpu.memory_used_bytes for gpu in own),
            memory_bytes=_total_bytes(gpu.memory_bytes for gpu in own),
            power_watts=_total(gpu.power_watts for gpu in own),
            energy_joules=self._count_energy(own),
            process_memory_bytes=_by_label(own, labels),
        )

    def _count_energy(self, gpus: Sequence[Gpu]) -> float | None:
        """Joules since each GPU was first seen, so that one more GPU is no jump."""
        energies = {gpu.index: gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None}
        if not energies:
            return None
        self._first_energy = energies | self._first_energy
        return self._energy.update({index: value - self._first_energy[index] for index, value in energies.items()})


def _by_label(gpus: Iterable[Gpu], labels: dict[int, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for gpu in gpus:
        for pid, used in gpu.processes:
            if pid in labels and used is not None:
                found[labels[pid]] = found.get(labels[pid], 0) + used
    return found


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total_bytes(values: Iterable[int | None]) -> int | None:
    total = _total(values)
    return None if total is None else int(total)
