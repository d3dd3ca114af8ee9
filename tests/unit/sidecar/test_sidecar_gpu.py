from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.gpu import GpuReader, GpuTracker
from sidecar.kernel.nvml import Gpu, Memory, Nvml, NvmlError, ProcessInfo, Utilization
from sidecar.target import Member

SOURCE = Path(__file__).parents[2] / "fixtures" / "nvml" / "recorded.c"
FIRST = Gpu(0, 0.87, 142164885504, 150754820096, 512.345, 9876543.21, ((4242, 140000000000), (4343, None)))
SECOND = Gpu(1, 0.0, 142164885504, 150754820096, None, None, ())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the recorded library")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return ctypes.CDLL(str(path))


def test_two_gpus_and_a_lost_one(library: ctypes.CDLL) -> None:
    nvml = Nvml(library)
    assert nvml.read() == (FIRST, SECOND)
    nvml.close()
    assert ctypes.c_int.in_dll(library, "initialized").value == 0


def test_layouts_are_those_of_nvml_h() -> None:
    assert [ctypes.sizeof(struct) for struct in (Utilization, Memory, ProcessInfo)] == [8, 24, 24]
    assert ProcessInfo.used_memory.offset == 8


def test_a_machine_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.kernel.nvml.LIBRARY", "libnvidia-ml-not-here.so.1")
    with pytest.raises(NvmlError, match="cannot be loaded"):
        Nvml()


class Old:
    """A library without any of the newer functions, and without a driver."""

    def __init__(self, code: int) -> None:
        self._code = code

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self._code


@pytest.mark.parametrize(
    ("code", "words"), [(9, "nvmlInit_v2 failed with code 9"), (0, "has no nvmlDeviceGetCount_v2")]
)
def test_an_old_library_or_no_driver_is_one_sentence(code: int, words: str) -> None:
    with pytest.raises(NvmlError, match=words):
        Nvml(Old(code)).read()


def test_the_gpus_of_the_engine_and_its_memory_by_label() -> None:
    tracker = GpuTracker(lambda: (FIRST, SECOND))
    sample = tracker.collect([Member(4242, 1, "core"), Member(4343, 1, "api")])
    assert sample is not None
    assert (sample.gpus, sample.utilization, sample.power_watts) == (1, 0.87, 512.345)
    assert sample.process_memory_bytes == {"core": 140000000000}


def test_all_gpus_while_none_of_the_engine_is_seen_on_one() -> None:
    sample = GpuTracker(lambda: (FIRST, SECOND)).collect([Member(1, 1, "core")])
    assert sample is not None
    assert sample.gpus == 2
    assert sample.utilization == pytest.approx(0.435)
    assert (sample.memory_bytes, sample.process_memory_bytes) == (2 * 150754820096, {})


def test_no_gpu_is_absent_and_what_none_tells_too() -> None:
    assert GpuTracker(lambda: ()).collect([]) is None
    silent = GpuTracker(lambda: (Gpu(0, None, None, None, None, None, ()),)).collect([])
    assert silent is not None
    assert (silent.utilization, silent.memory_bytes, silent.energy_joules) == (None, None, None)


def test_energy_counts_from_when_a_gpu_was_first_seen() -> None:
    readings = iter([((0, 500.0),), ((0, 530.0),), ((0, 540.0), (1, 9000.0)), ((0, 541.0), (1, 9002.0))])

    def read() -> tuple[Gpu, ...]:
        return tuple(Gpu(index, None, None, None, None, joules, ()) for index, joules in next(readings))

    tracker = GpuTracker(read)
    samples = [tracker.collect([]) for _ in range(4)]
    assert [sample.energy_joules for sample in samples if sample] == [0, 30, 40, 43]


class Stuck:
    """A driver that answers once, and then holds the call."""

    def __init__(self, release: threading.Event) -> None:
        self._release = release
        self.closed = threading.Event()
        self.asked = 0

    def read(self) -> tuple[Gpu, ...]:
        self.asked += 1
        if self.asked > 1:
            self._release.wait(10)
            raise NvmlError("gone")
        return (FIRST,)

    def close(self) -> None:
        self.closed.set()


def test_a_driver_that_hangs_makes_the_gpus_absent_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.gpu._READ_SECONDS", 0.0)
    release, now = threading.Event(), [0.0]
    driver: Any = Stuck(release)
    reader = GpuReader(lambda: driver, lambda: now[0])
    assert reader.latest() == ()
    reader.start()
    deadline = time.monotonic() + 5
    while driver.asked < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader.latest() == (FIRST,)
    now[0] = 6.0
    assert reader.latest() == ()
    reader.stop()
    release.set()
    assert driver.closed.wait(5)
