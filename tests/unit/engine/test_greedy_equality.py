"""Greedy answers are those of ``transformers`` on the same checkpoint, however the engine came to compute them."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from instrumented_engine.core.blocks import BlockPool
from instrumented_engine.core.runner import ForwardTimer, ModelRunner
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.cache import KVCache
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.loaders import load_model
from instrumented_engine.model.source import ModelSource
from telemetry.layout import CORE
from telemetry.scoreboard import Writer
from tests.greedy import generate
from tests.unit.model.hf_checkpoint import EOS, VOCAB, save_checkpoint

CPU = torch.device("cpu")
BLOCK = 8
LENGTHS = (1, 3, 8, 17, 40, 64)
NEW_TOKENS = 40


@dataclass
class Reference:
    """What ``transformers`` answered."""

    model: Llama
    prompts: list[list[int]]
    answers: list[list[int]]
    closest: float
    """Smallest distance of a chosen token's logit from the next one's."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    path = tmp_path_factory.mktemp("hf")
    theirs = save_checkpoint(path, seed=18)
    draw = torch.Generator().manual_seed(11)
    shared = torch.randint(len(VOCAB), (24,), generator=draw).tolist()
    prompts = [torch.randint(len(VOCAB), (length,), generator=draw).tolist() for length in LENGTHS]
    prompts += [shared + prompt for prompt in prompts[:4]]
    answers, closest = [], math.inf
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output: Any = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            return_dict_in_generate=True,
            output_logits=True,
        )
        answers.append(output.sequences[0, len(prompt) :].tolist())
        best = torch.cat(output.logits).topk(2).values
        closest = min(closest, float((best[:, 0] - best[:, 1]).min()))
    return Reference(load_model(ModelSource.resolve(str(path)), CPU, torch.float32), prompts, answers, closest)


class Engine:
    """Scheduler, runner and model without sockets."""

    def __init__(
        self,
        model: Llama,
        directory: Path,
        *,
        blocks: int = 200,
        tokens: int = 512,
        batch: int = 16,
        prefix_cache: bool = True,
    ) -> None:
        page = Writer(directory, CORE)
        cache = KVCache(model.config, blocks, BLOCK, CPU, torch.float32)
        self.runner = ModelRunner(model, cache, CPU, ForwardTimer(CPU, page.histogram("forward_device")))
        self.scheduler = Scheduler(BlockPool(blocks, BLOCK, prefix_cache=prefix_cache), batch, tokens)

    def answer(self, prompts: Seq[list[int]]) -> list[list[int]]:
        """What is generated for each prompt, all of them submitted at once."""
        return generate(self.runner, self.scheduler, prompts, NEW_TOKENS, (EOS, EOS + 2))


def test_the_reference_is_worth_comparing_with(reference: Reference) -> None:
    """Long answers that do not just repeat one token, and no choice that rounding could turn."""
    assert sum(map(len, reference.answers)) > 200
    assert reference.closest > 1e-3
    assert all(len(set(answer)) > len(answer) // 4 for answer in reference.answers)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_alone(reference: Reference, tmp_path: Path, prefix_cache: bool) -> None:
    engine = Engine(reference.model, tmp_path, prefix_cache=prefix_cache)
    assert [engine.answer([prompt])[0] for prompt in reference.prompts] == reference.answers


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_batched(reference: Reference, tmp_path: Path, prefix_cache: bool) -> None:
    engine = Engine(reference.model, tmp_path, prefix_cache=prefix_cache)
    assert engine.answer(reference.prompts) == reference.answers
    assert (engine.scheduler.hit_tokens > 0) is prefix_cache


@pytest.mark.parametrize("tokens", [16, 17, 50])
def test_in_chunks(reference: Reference, tmp_path: Path, tokens: int) -> None:
    assert Engine(reference.model, tmp_path, tokens=tokens).answer(reference.prompts) == reference.answers


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_with_preemption(reference: Reference, tmp_path: Path, prefix_cache: bool) -> None:
    engine = Engine(reference.model, tmp_path, blocks=30, prefix_cache=prefix_cache)
    assert engine.answer(reference.prompts) == reference.answers
    assert engine.scheduler.preemptions > 0


def test_from_the_cache_of_an_earlier_answer(reference: Reference, tmp_path: Path) -> None:
    engine = Engine(reference.model, tmp_path)
    engine.answer(reference.prompts)
    queried, hits = engine.scheduler.queried_tokens, engine.scheduler.hit_tokens
    assert engine.answer(reference.prompts) == reference.answers
    full = sum((len(prompt) - 1) // BLOCK * BLOCK for prompt in reference.prompts)
    assert engine.scheduler.hit_tokens - hits == full
    assert engine.scheduler.queried_tokens == 2 * queried
