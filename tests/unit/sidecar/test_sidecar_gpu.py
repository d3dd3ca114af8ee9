from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar import gpu_record
from sidecar.gpu import GpuReader, GpuTracker
from sidecar.gpu_record import record
from sidecar.kernel.nvml import Gpu, Memory, Nvml, NvmlError, ProcessInfo, Utilization
from sidecar.target import Member

RECORDINGS = Path(__file__).parents[2] / "fixtures" / "nvml"
FIRST = Gpu(0, 0.87, 142164885504, 150754820096, 512.345, 9876543.21, ((4242, 140000000000), (4343, None)))
SECOND = Gpu(1, 0.0, 142164885504, 150754820096, None, None, ())
EXPECTED: dict[str, tuple[Gpu, ...] | str] = {
    "two_gpus": (FIRST, SECOND),
    "lost": (Gpu(0, None, None, None, None, None, ()),),
    "no_permission": (Gpu(1, 0.12, 5000000000, 25757220864, 71.0, 123.456, ()),),
    "old_driver": (Gpu(0, 0.99, 16000000000, 17071734784, 250.0, None, ()),),
    "mig": (Gpu(0, None, 40000000000, 85899345920, 180.0, 777.0, ((4242, 30000000000), (4242, 9000000000))),),
    "no_driver": "nvmlInit_v2 failed with code 9",
    "very_old": "has no nvmlDeviceGetCount_v2",
}
"""Recording -> what is read from it, or what the one sentence of the failure says."""
Replay = Callable[[str], ctypes.CDLL]


def answers(name: str) -> list[str]:
    lines = (RECORDINGS / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """Builds the library that answers as a recording says."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the library that replays recordings")
    folder = tmp_path_factory.mktemp("nvml")

    def build(name: str) -> ctypes.CDLL:
        path = folder / f"{name}.so"
        has = sorted({f"-DHAS_{line.split()[0]}" for line in answers(name) if line.split()[2] != "missing"})
        subprocess.run(
            [compiler, "-Wall", "-Werror", "-shared", "-fPIC", *has, "-o", path, RECORDINGS / "replay.c"], check=True
        )
        library = ctypes.CDLL(str(path))
        assert library.replay_from(str(RECORDINGS / f"{name}.txt").encode()) == len(
            [line for line in answers(name) if "missing" not in line]
        )
        return library

    return build


def test_every_recording_is_tested() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.txt")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recording(replay: Replay, name: str) -> None:
    library, expected = replay(name), EXPECTED[name]
    if isinstance(expected, str):
        with pytest.raises(NvmlError, match=expected):
            Nvml(library).read()
        return
    nvml = Nvml(library)
    assert nvml.read() == expected
    nvml.close()
    assert ctypes.c_int.in_dll(library, "initialized").value == 0


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recording_of_a_replay_is_the_recording(replay: Replay, name: str) -> None:
    assert record(replay(name)) == answers(name)


def test_the_recorder_without_a_gpu_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_record.main([]) == 2
    assert capsys.readouterr().err == "sidecar.gpu_record: takes one argument, the file to write\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_record, "LIBRARY", "libnvidia-ml-not-here.so.1")
        assert gpu_record.main([str(tmp_path / "found.txt")]) == 1
    assert "no GPUs to record" in capsys.readouterr().err
    assert not (tmp_path / "found.txt").exists()


def test_the_recorder_writes_a_file(replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = replay("two_gpus")
    monkeypatch.setattr(gpu_record, "LIBRARY", library._name)
    written = tmp_path / "found.txt"
    assert gpu_record.main([str(written)]) == 0
    head, *lines = written.read_text().splitlines()
    assert head.startswith("# Recorded 2")
    assert lines == answers("two_gpus")
    assert gpu_record.main([str(tmp_path / "not" / "there")]) == 2


def test_layouts_are_those_of_nvml_h() -> None:
    assert [ctypes.sizeof(struct) for struct in (Utilization, Memory, ProcessInfo)] == [8, 24, 24]
    assert ProcessInfo.used_memory.offset == 8


def test_a_machine_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.kernel.nvml.LIBRARY", "libnvidia-ml-not-here.so.1")
    with pytest.raises(NvmlError, match="cannot be loaded"):
        Nvml()


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
