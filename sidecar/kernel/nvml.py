"""GPUs through NVIDIA's management library, by ctypes: no package is needed, and without the library there are no GPUs.

Source: nvml.h of the CUDA toolkit. Struct layouts are those of the versioned functions named here; a function that an
older library lacks, or a device that does not support it, makes the value None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0
_NOT_AVAILABLE: Final = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE, for memory of a process that the driver does not tell."""
_MOST_PROCESSES: Final = 512


class NvmlError(Exception):
    """The library is missing or refused; the message is one sentence."""


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sample period (1/6 to 1 s) in which a kernel ran or memory moved."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    """nvmlMemory_t in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of version 2, which nvmlDeviceGetComputeRunningProcesses_v3 fills."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one instant."""

    index: int
    utilization: float | None
    """0 to 1."""
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    """Since the driver was loaded."""
    processes: tuple[tuple[int, int | None], ...]
    """Pid as the driver's pid namespace numbers it (the host's), and its bytes where they are told."""


class Nvml:
    """An open NVML. Calls can take long when a GPU is unwell: use it from a thread that nobody waits for."""

    def __init__(self, library: Any = None) -> None:
        """Load and initialize.

        Args:
            library: a stand-in for the shared object.

        Raises:
            NvmlError: there is no library, or no driver behind it.
        """
        try:
            self._library = library if library is not None else ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlError(f"{LIBRARY} cannot be loaded, so there are no GPUs to see") from error
        self._call("nvmlInit_v2")

    def close(self) -> None:
        """Let go of the driver."""
        with suppress(NvmlError):
            self._call("nvmlShutdown")

    def read(self) -> tuple[Gpu, ...]:
        """All GPUs that are visible here.

        Raises:
            NvmlError: they cannot be counted, as after the driver was unloaded.
        """
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return tuple(self._read_gpus(count.value))

    def _read_gpus(self, count: int) -> Iterator[Gpu]:
        for index in range(count):
            handle = ctypes.c_void_p()
            try:
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            except NvmlError:  # a GPU that fell off the bus; the others are fine
                continue
            yield self._read_gpu(index, handle)

    def _read_gpu(self, index: int, handle: ctypes.c_void_p) -> Gpu:
        utilization, memory = Utilization(), Memory()
        power, energy = ctypes.c_uint(), ctypes.c_ulonglong()
        has_utilization = self._fills("nvmlDeviceGetUtilizationRates", handle, utilization)
        has_memory = self._fills("nvmlDeviceGetMemoryInfo", handle, memory)
        has_power = self._fills("nvmlDeviceGetPowerUsage", handle, power)
        has_energy = self._fills("nvmlDeviceGetTotalEnergyConsumption", handle, energy)
        return Gpu(
            index=index,
            utilization=utilization.gpu / 100 if has_utilization else None,
            memory_used_bytes=memory.used if has_memory else None,
            memory_bytes=memory.total if has_memory else None,
            power_watts=power.value / 1000 if has_power else None,
            energy_joules=energy.value / 1000 if has_energy else None,
            processes=tuple(self._read_processes(handle)),
        )

    def _read_processes(self, handle: ctypes.c_void_p) -> Sequence[tuple[int, int | None]]:
        table = (ProcessInfo * _MOST_PROCESSES)()
        count = ctypes.c_uint(_MOST_PROCESSES)
        if not self._fills("nvmlDeviceGetComputeRunningProcesses_v3", handle, count, table):
            return ()
        return [
            (info.pid, None if info.used_memory == _NOT_AVAILABLE else info.used_memory)
            for info in table[: min(count.value, _MOST_PROCESSES)]
        ]

    def _fills(self, name: str, handle: ctypes.c_void_p, *targets: Any) -> bool:
        try:
            self._call(name, handle, *(ctypes.byref(target) for target in targets))
        except NvmlError:
            return False
        return True

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise NvmlError(f"this NVML has no {name}") from error
        if code != _SUCCESS:
            raise NvmlError(f"{name} failed with code {code}")
