"""A small GGUF file written here loads as what was written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from instrumented_engine.model.byte_level import ALPHABET
from instrumented_engine.model.gguf_tokenizer import GgufTokenizer
from instrumented_engine.model.loaders import load_config, load_model
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.model.tokenizers import IncrementalDecoder, load_tokenizer

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 32, 4, 2, 8, 64, 2
MERGES = ["h e", "l l", "he ll", "Ġ w", "ð Ł", "ðŁ ĺ", "1 2"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *ALPHABET, *(m.replace(" ", "") for m in MERGES), "plain word"]
TYPES = [3, 3, 3, *([1] * (len(ALPHABET) + len(MERGES))), 4]
VOCAB = len(TOKENS)
TEMPLATE = "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"


def tensors(*, tied: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    if not tied:
        shapes["output"] = (VOCAB, HIDDEN)
    for i in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():
            shapes[f"blk.{i}.{name}"] = shape
    return {f"{name}.weight": rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write(
    path: Path,
    weights: dict[str, Any],
    architecture: str = "llama",
    vocabulary: str = "gpt2",
    more: Callable[[GGUFWriter], None] = lambda _: None,
) -> ModelSource:
    writer = GGUFWriter(path, architecture)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_feed_forward_length(INNER)
    writer.add_context_length(512)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model(vocabulary)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(3)
    writer.add_chat_template(TEMPLATE)
    more(writer)
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource.resolve(str(path))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tensors(tied=False))


@pytest.fixture(scope="module")
def tokenizer(tiny: ModelSource) -> GgufTokenizer:
    loaded = load_tokenizer(tiny)
    assert isinstance(loaded, GgufTokenizer)
    return loaded


def test_config(tiny: ModelSource) -> None:
    config = load_config(tiny)
    assert (config.hidden_size, config.num_layers, config.intermediate_size) == (HIDDEN, LAYERS, INNER)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (HEADS, KV_HEADS, HEAD_DIM)
    assert (config.vocab_size, config.max_positions, config.rope_theta) == (VOCAB, 512, 5000.0)
    assert config.rms_norm_eps == pytest.approx(1e-6)
    assert config.rope_interleaved


def test_weights_land_where_they_belong(tiny: ModelSource) -> None:
    written, loaded = tensors(tied=False), load_model(tiny, "cpu", torch.float32).state_dict()
    expected = {
        "embed": ["token_embd"],
        "norm": ["output_norm"],
        "head": ["output"],
        "layers.1.attn_norm": ["blk.1.attn_norm"],
        "layers.1.qkv": ["blk.1.attn_q", "blk.1.attn_k", "blk.1.attn_v"],
        "layers.1.attn_out": ["blk.1.attn_output"],
        "layers.1.ffn_norm": ["blk.1.ffn_norm"],
        "layers.1.gate_up": ["blk.1.ffn_gate", "blk.1.ffn_up"],
        "layers.1.down": ["blk.1.ffn_down"],
    }
    for ours, theirs in expected.items():
        stacked = np.concatenate([written[f"{name}.weight"] for name in theirs])
        np.testing.assert_array_equal(loaded[f"{ours}.weight"].numpy(), stacked)


def test_head_is_tied_if_the_file_has_none(tmp_path: Path) -> None:
    model = load_model(write(tmp_path / "tied.gguf", tensors(tied=True)), "cpu", torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()


def test_dummy_is_the_same_every_time() -> None:
    source = ModelSource.resolve("dummy")
    first, second = (load_model(source, "cpu", torch.float32).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    # A change of the dummy's weights changes recorded outputs: it should be meant.
    assert first["head.weight"][0, 0].item() == pytest.approx(0.111111, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("blk.1.attn_q.weight"), "lacks the tensor blk.1.attn_q.weight"),
        (lambda w: w.update({"rope_freqs.weight": np.ones(4, np.float32)}), "would ignore, such as rope_freqs.weight"),
        (lambda w: w.update({"blk.0.ffn_up.weight": np.ones((INNER, 8), np.float32)}), "blk.0.ffn_up.weight do not"),
        (
            lambda w: w.update({"output_norm.weight": np.ones(8, np.float32)}),
            "output_norm.weight do not have",
        ),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, change: Callable[[dict[str, Any]], Any], sentence: str) -> None:
    weights = tensors(tied=False)
    change(weights)
    with pytest.raises(ModelUnavailable, match=sentence):
        load_model(write(tmp_path / "m.gguf", weights), "cpu", torch.float32)


def test_other_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="holds a mamba model, and only llama models"):
        load_config(write(tmp_path / "m.gguf", {}, architecture="mamba"))


def test_scaled_rope_is_refused(tmp_path: Path) -> None:
    scaled = write(tmp_path / "m.gguf", {}, more=lambda w: w.add_string("llama.rope.scaling.type", "yarn"))
    with pytest.raises(ModelUnavailable, match="scales rotary positions"):
        load_config(scaled)


def test_other_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="vocabulary of kind llama/smollm"):
        load_tokenizer(write(tmp_path / "m.gguf", {}, vocabulary="llama"))


@pytest.mark.parametrize("keep", [4, 30, 2000])
def test_truncated_file_is_refused(tmp_path: Path, tiny: ModelSource, keep: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.file.read_bytes()[:keep])
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        load_config(ModelSource.resolve(str(path)))


def test_merges_digits_and_markers(tokenizer: GgufTokenizer) -> None:
    ids = tokenizer.encode("hello w12<|im_end|>plain word")
    assert [TOKENS[token] for token in ids] == ["hell", "o", "Ġw", "1", "2", "<|im_end|>", "plain word"]
    assert tokenizer.decode(ids) == "hello w12plain word"
    assert tokenizer.eos_ids == {0, 2, 3}
    assert (tokenizer.vocab_size, tokenizer.max_positions) == (VOCAB, 512)


def test_bos_is_added_if_the_file_says_so(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", {}, more=lambda w: w.add_add_bos_token(value=True))
    assert load_tokenizer(source).encode("he")[0] == 1


def test_default_system_comes_from_the_template(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.chat_prompt([("user", "Hi")]).startswith(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user"
    )


@given(text=st.text().filter(lambda text: not any(special in text for special in TOKENS[:3])))
def test_round_trip(tokenizer: GgufTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_half_a_surrogate_pair_is_a_question_mark(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a?b"


@given(pushes=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=6), max_size=10))
def test_pushes_join_to_the_library_decode(tokenizer: GgufTokenizer, pushes: list[list[int]]) -> None:
    library = tokenizer._tokenizer
    library.decoder = decoders.ByteLevel()
    decoder = IncrementalDecoder(tokenizer)
    streamed = "".join(decoder.push(ids) for ids in pushes) + decoder.finish()
    assert streamed == library.decode([token for ids in pushes for token in ids], skip_special_tokens=True)
