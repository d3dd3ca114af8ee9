"""Every way to compute a token must give what plain full attention over its whole sequence gives."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from instrumented_engine.model.batch import Batch, PrefillChunk
from instrumented_engine.model.cache import KVCache, bytes_per_block
from instrumented_engine.model.config import DUMMY_CONFIG, ModelConfig
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.loaders import load_model
from instrumented_engine.model.source import ModelSource

BLOCK = 4
BLOCKS = 64
MODEL = load_model(ModelSource.resolve("dummy"), "cpu", torch.float64)
INTERLEAVED = Llama(replace(DUMMY_CONFIG, rope_interleaved=True), MODEL.state_dict())


def reference(model: Llama, ids: list[int]) -> Tensor:
    """Logits of every token, one head at a time, with no cache and no code of the package but its weights."""
    config, w = model.config, model.state_dict()
    x = w["embed.weight"][ids]
    for i in range(config.num_layers):
        layer = {name.split(".")[2]: t for name, t in w.items() if name.startswith(f"layers.{i}.")}
        x = x + heads_attend(config, norm(x, layer["attn_norm"], config) @ layer["qkv"].T) @ layer["attn_out"].T
        gate, up = (norm(x, layer["ffn_norm"], config) @ layer["gate_up"].T).tensor_split(2, dim=1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer["down"].T
    logits: Tensor = norm(x, w["norm.weight"], config) @ w["head.weight"].T
    return logits


def norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight


def heads_attend(config: ModelConfig, qkv: Tensor) -> Tensor:
    heads = qkv.tensor_split(config.num_heads + 2 * config.num_kv_heads, dim=1)
    future = torch.ones(len(qkv), len(qkv)).triu(1).bool()
    outputs = []
    for h in range(config.num_heads):
        kv = h * config.num_kv_heads // config.num_heads
        query, key = turn(config, heads[h]), turn(config, heads[config.num_heads + kv])
        value = heads[config.num_heads + config.num_kv_heads + kv]
        scores = (query @ key.T / config.head_dim**0.5).masked_fill(future, float("-inf"))
        outputs.append(scores.softmax(-1) @ value)
    return torch.cat(outputs, dim=1)


def turn(config: ModelConfig, x: Tensor) -> Tensor:
    half = config.head_dim // 2
    pairs = [(2 * i, 2 * i + 1) if config.rope_interleaved else (i, i + half) for i in range(half)]
    out = torch.empty_like(x)
    for i, (a, b) in enumerate(pairs):
        angle = torch.arange(len(x), dtype=x.dtype) * config.rope_theta ** (-2 * i / config.head_dim)
        turned = torch.complex(x[:, a], x[:, b]) * torch.polar(torch.ones_like(angle), angle)
        out[:, a], out[:, b] = turned.real, turned.imag
    return out


@dataclass
class Seq:
    """Ids, the slot of each, and how many are computed."""

    ids: list[int]
    slots: list[int]
    done: int = 0


def scattered(rng: random.Random, lengths: Sequence[int]) -> list[Seq]:
    """Random sequences whose blocks are spread over the cache in no order; block 0 belongs to nobody."""
    free = rng.sample(range(1, BLOCKS), BLOCKS - 1)
    made = []
    for length in lengths:
        blocks = [free.pop() for _ in range(-(-length // BLOCK))]
        slots = [block * BLOCK + offset for block in blocks for offset in range(BLOCK)][:length]
        made.append(Seq([rng.randrange(256) for _ in range(length)], slots))
    return made


def new_cache(model: Llama = MODEL) -> KVCache:
    """A cache full of what other requests left behind."""
    cache = KVCache(model.config, BLOCKS, BLOCK, "cpu", model.dtype)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(30.0)
    return cache


def run(
    cache: KVCache, prefills: Sequence[tuple[Seq, int]], decodes: Sequence[Seq] = (), model: Llama = MODEL
) -> Tensor:
    """Compute the next ``count`` tokens of each prefill and the next one of each decode; logits of all rows."""
    rows: list[tuple[Seq, int]] = []
    chunks = []
    for seq, count in prefills:
        end = seq.done + count
        chunks.append(PrefillChunk(len(rows), count, torch.tensor(seq.slots[:end])))
        rows += [(seq, position) for position in range(seq.done, end)]
        seq.done = end
    decode_start = len(rows)
    for seq in decodes:
        rows.append((seq, seq.done))
        seq.done += 1
    width = max((seq.done for seq in decodes), default=0)
    slots = [seq.slots[: seq.done] + [0] * (width - seq.done) for seq in decodes]
    batch = Batch(
        token_ids=torch.tensor([seq.ids[position] for seq, position in rows]),
        positions=torch.tensor([position for _, position in rows]),
        cache_slots=torch.tensor([seq.slots[position] for seq, position in rows]),
        prefills=tuple(chunks),
        decode_start=decode_start,
        decode_slots=torch.tensor(slots, dtype=torch.int64).view(len(decodes), width),
        decode_lengths=torch.tensor([seq.done for seq in decodes], dtype=torch.int64),
        logit_rows=torch.arange(len(rows)),
    )
    return model(batch, cache)  # type: ignore[no-any-return]


def assert_same(logits: Tensor, expected: Tensor) -> None:
    # The logits are rounded to float32 at the very end, everything before is float64.
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model", [MODEL, INTERLEAVED], ids=["half-split", "interleaved"])
def test_whole_prefill_is_full_attention(model: Llama) -> None:
    [seq] = scattered(random.Random(1), [37])
    assert_same(run(new_cache(model), [(seq, 37)], model=model), reference(model, seq.ids))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(0, 2**32))
def test_chunked_prefill_is_whole_prefill(chunks: list[int], seed: int) -> None:
    [seq] = scattered(random.Random(seed), [sum(chunks)])
    cache = new_cache()
    logits = torch.cat([run(cache, [(seq, count)]) for count in chunks])
    assert_same(logits, reference(MODEL, seq.ids))


@pytest.mark.parametrize("model", [MODEL, INTERLEAVED], ids=["half-split", "interleaved"])
def test_decode_continues_prefill(model: Llama) -> None:
    [seq] = scattered(random.Random(2), [21])
    cache = new_cache(model)
    run(cache, [(seq, 5)], model=model)
    logits = torch.cat([run(cache, [], [seq], model=model) for _ in range(16)])
    assert_same(logits, reference(model, seq.ids)[5:])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6), st.booleans()), min_size=1, max_size=8), st.integers())
def test_batched_is_alone(plans: list[tuple[int, int, bool]], seed: int) -> None:
    """Any mix of first chunks, later chunks and decodes, each after any context."""
    plans = [(done, 1 if decodes else new, decodes and done > 0) for done, new, decodes in plans]
    seqs = scattered(random.Random(seed), [done + new for done, new, _ in plans])
    cache = new_cache()
    for seq, (done, _, _) in zip(seqs, plans, strict=True):
        if done:
            run(cache, [(seq, done)])
    prefills = [(seq, new) for seq, (_, new, decodes) in zip(seqs, plans, strict=True) if not decodes]
    decodes = [seq for seq, (_, _, is_decode) in zip(seqs, plans, strict=True) if is_decode]
    logits = run(cache, prefills, decodes)
    expected = [reference(MODEL, seq.ids)[-new:] for seq, new in [*prefills, *((seq, 1) for seq in decodes)]]
    assert_same(logits, torch.cat(expected))


def test_scattered_blocks_are_contiguous_blocks() -> None:
    [seq] = scattered(random.Random(3), [30])
    straight = Seq(seq.ids, list(range(30)))
    assert seq.slots != straight.slots
    assert torch.equal(run(new_cache(), [(seq, 30)]), run(new_cache(), [(straight, 30)]))


def test_cached_prefix_is_not_recomputed() -> None:
    first, second = scattered(random.Random(4), [20, 22])
    shared = 3 * BLOCK
    cache = new_cache()
    run(cache, [(first, 20)])
    follower = Seq(first.ids[:shared] + second.ids, first.slots[:shared] + second.slots, done=shared)
    assert_same(run(cache, [(follower, 22)]), reference(MODEL, follower.ids)[shared:])


def test_rope_forms_agree_on_permuted_weights() -> None:
    config = DUMMY_CONFIG
    half = config.head_dim // 2
    neighbours = torch.arange(config.head_dim).view(2, half).T.flatten()
    rotary = config.num_heads + config.num_kv_heads
    order = torch.cat([head * config.head_dim + neighbours for head in range(rotary)])
    weights = MODEL.state_dict()
    for name in [name for name in weights if "qkv" in name]:
        rest = torch.arange(len(order), len(weights[name]))
        weights[name] = weights[name][torch.cat((order, rest))]
    permuted = Llama(INTERLEAVED.config, weights)
    [seq] = scattered(random.Random(5), [24])
    expected = run(new_cache(), [(replace(seq), 24)])
    assert_same(run(new_cache(), [(replace(seq), 24)], model=permuted), expected)
    unpermuted = run(new_cache(), [(replace(seq), 24)], model=INTERLEAVED)
    assert not torch.allclose(unpermuted, expected, atol=1e-2)


@pytest.mark.parametrize("rows", [[2, 0], [1], []])
def test_only_wanted_rows_in_wanted_order(rows: list[int]) -> None:
    slots = torch.arange(3)
    batch = Batch(
        token_ids=torch.tensor([7, 8, 9]),
        positions=slots,
        cache_slots=slots,
        prefills=(PrefillChunk(0, 3, slots),),
        decode_start=3,
        decode_slots=torch.zeros(0, 0, dtype=torch.int64),
        decode_lengths=torch.zeros(0, dtype=torch.int64),
        logit_rows=torch.tensor(rows, dtype=torch.int64),
    )
    assert_same(MODEL(batch, new_cache()), reference(MODEL, [7, 8, 9])[rows])


def test_half_precision_is_near() -> None:
    model = load_model(ModelSource.resolve("dummy"), "cpu", torch.bfloat16)
    [seq] = scattered(random.Random(6), [33])
    cache = new_cache(model)
    logits = torch.cat((run(cache, [(seq, 32)], model=model), run(cache, [], [seq], model=model)))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference(MODEL, seq.ids).float(), rtol=0, atol=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_is_as_large_as_it_says(dtype: torch.dtype) -> None:
    cache = KVCache(DUMMY_CONFIG, 10, 16, "cpu", dtype)
    held = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    assert held == 10 * cache.bytes_per_block == 10 * bytes_per_block(DUMMY_CONFIG, 16, dtype)


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (4, 0), (-1, 16)])
def test_cache_without_room_is_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="needs blocks"):
        KVCache(DUMMY_CONFIG, blocks, size, "cpu", torch.float32)
