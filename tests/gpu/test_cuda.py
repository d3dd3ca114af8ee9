"""The engine on a CUDA device: the same answers, times by the device's own clock, NVML's numbers, freed blocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from instrumented_engine.core.blocks import BlockPool
from instrumented_engine.core.runner import ForwardTimer, ModelRunner
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.cache import KVCache
from instrumented_engine.model.loaders import load_model
from instrumented_engine.model.source import ModelSource
from telemetry.layout import CORE
from telemetry.scoreboard import Reader, Writer
from tests.conftest import eventually
from tests.greedy import generate
from tests.integration.conftest import Engine, running_engine
from tests.integration.test_engine_api import complete
from tests.integration.watcher import Watcher

BLOCK, BLOCKS, NEW_TOKENS = 16, 200, 24
PROMPTS = [[number, *range(length)] for number, length in enumerate((1, 5, 16, 40, 100, 250))]
CUDA_FLAGS = ("--device=cuda", "--threads=1")


class Bench:
    """Scheduler, runner and model on one device, without sockets."""

    def __init__(self, directory: Path, name: str) -> None:
        self.page = Writer(directory, CORE, f"core-{name}")
        self.device = torch.device(name)
        self.model = load_model(ModelSource.resolve("dummy"), self.device, torch.float32)
        cache = KVCache(self.model.config, BLOCKS, BLOCK, self.device, torch.float32)
        self.timer = ForwardTimer(self.device, self.page.histogram("forward_device"))
        self.runner = ModelRunner(self.model, cache, self.device, self.timer)
        self.scheduler = Scheduler(BlockPool(BLOCKS, BLOCK), len(PROMPTS), 512)

    def answers(self) -> list[list[int]]:
        """What is generated greedily for each prompt, all of them in one batch."""
        return generate(self.runner, self.scheduler, PROMPTS, NEW_TOKENS)

    def forwards(self) -> tuple[int, int]:
        """Timed forward passes and the nanoseconds of all of them."""
        counts, total = Reader(self.page.path).histogram("forward_device")
        return sum(counts), total


def test_greedy_answers_are_those_of_the_cpu(tmp_path: Path) -> None:
    on_cpu, on_cuda = (Bench(tmp_path, name).answers() for name in ("cpu", "cuda"))
    assert on_cuda == on_cpu
    assert len({tuple(answer) for answer in on_cpu}) == len(PROMPTS)


@contextmanager
def never_synchronizing() -> Iterator[None]:
    """Torch raises for every call in which the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_the_forward_time_is_read_later_and_never_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "cuda")
    cycles = 200_000_000  # of the device's clock: more than 50 ms up to 4 GHz
    with never_synchronizing():
        bench.timer.start()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        bench.timer.stop()
        assert bench.forwards() == (0, 0)  # it is still running
        bench.timer.start()
        bench.timer.stop()
        assert bench.forwards() == (0, 0)
    torch.cuda.synchronize()
    with never_synchronizing():
        bench.timer.start()
    count, nanoseconds = bench.forwards()
    assert count == 2
    assert nanoseconds > 50_000_000


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[Engine]:
    with running_engine(runtime_dir, *CUDA_FLAGS) as started:
        yield started


def test_the_engine_says_the_same_as_on_the_cpu(engine: Engine, tmp_path: Path) -> None:
    with running_engine(tmp_path, "--device=cpu", "--threads=1") as on_cpu:
        asked = [f"prompt {number}" for number in range(4)]
        texts = [[complete(one, prompt=text)["choices"][0]["text"] for text in asked] for one in (engine, on_cpu)]
    assert texts[0] == texts[1]
    counts, _ = engine.page("core").histogram("forward_device")
    # The last passes are read with the next one.
    assert engine.page("core")["steps"] >= sum(counts) > 0


def test_the_sidecar_reads_the_gpu_through_nvml(engine: Engine) -> None:
    with Watcher(engine.port, engine.runtime_dir) as watcher:
        watcher.wait_for(lambda: (watcher.metric("gpus") or 0) >= 1, "a GPU")
        used, size = watcher.metric("gpu_memory_used_bytes"), watcher.metric("gpu_memory_bytes")
        assert used is not None
        assert size is not None
        assert 0 < used < size
        utilization = watcher.metric("gpu_utilization_ratio")
        assert utilization is not None
        assert 0 <= utilization <= 1


def test_an_abort_frees_its_blocks(engine: Engine) -> None:
    core = engine.page("core")
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with engine.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # held: dropping it would close the connection
        next(lines)
        assert core["kv_blocks_used"] > 0
    eventually("the abort", lambda: core["requests_aborted"] == 1)
    eventually("its blocks", lambda: core["kv_blocks_used"] == 0)


def test_cores_share_the_devices_out(runtime_dir: Path) -> None:
    with running_engine(runtime_dir, "--data-parallel-size=2", *CUDA_FLAGS) as engine, engine.client() as client:
        eventually("both cores", lambda: client.get("/health").json() == {"status": "ok"})
        assert complete(engine, prompt="hello")["usage"]["completion_tokens"] == 12
