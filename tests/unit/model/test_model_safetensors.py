"""A checkpoint written by ``transformers`` loads as what was written; anything else is refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from instrumented_engine.model import hf_tokenizer
from instrumented_engine.model.hf_tokenizer import HfTokenizer
from instrumented_engine.model.loaders import load_config, load_model
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.model.tokenizers import load_tokenizer
from tests.unit.model.hf_checkpoint import BOS, EOS, edit_config, save_checkpoint


def source_of(path: Path) -> ModelSource:
    return ModelSource.resolve(str(path))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf")
    save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> HfTokenizer:
    loaded = load_tokenizer(source_of(checkpoint))
    assert isinstance(loaded, HfTokenizer)
    return loaded


def test_config(checkpoint: Path) -> None:
    config = load_config(source_of(checkpoint))
    assert (config.hidden_size, config.num_layers, config.intermediate_size) == (48, 3, 80)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (6, 2, 8)
    assert (config.max_positions, config.rope_theta, config.rope_interleaved) == (512, 5000.0, False)


def test_the_old_place_of_the_rotary_base_is_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    edit_config(tmp_path, rope_parameters=None, rope_theta=7000.0)
    assert load_config(source_of(tmp_path)).rope_theta == 7000.0


def test_shards_are_one_model(tmp_path: Path, checkpoint: Path) -> None:
    save_checkpoint(tmp_path, shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    whole, sharded = (load_model(source_of(path), "cpu", torch.float32).state_dict() for path in (checkpoint, tmp_path))
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tied=True)
    model = load_model(source_of(tmp_path), "cpu", torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "mamba"}, "holds a mamba model, and only llama"),
        ({"attention_bias": True}, "has attention_bias True, which is not supported"),
        ({"hidden_act": "gelu"}, "has hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rotary positions are scaled .llama3."),
        ({"num_key_value_heads": 4}, "6 query heads cannot share 4"),
        ({"hidden_size": None}, "describes no usable model"),
    ],
)
def test_other_models_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    save_checkpoint(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelUnavailable, match=sentence):
        load_config(source_of(tmp_path))


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailable, match=r"config\.json lacks vocab_size"):
        load_config(source_of(tmp_path))


@pytest.mark.parametrize(
    ("drop", "add", "sentence"),
    [
        ("lm_head.weight", {}, "lacks the tensor lm_head.weight"),
        ("", {"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}, "would ignore, such as .*q_proj.bias"),
        ("", {"model.norm.weight": torch.ones(8)}, "model.norm.weight do not have the sizes"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, drop: str, add: dict[str, Any], sentence: str) -> None:
    save_checkpoint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors") | add
    weights.pop(drop, None)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelUnavailable, match=sentence):
        load_model(source_of(tmp_path), "cpu", torch.float32)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", b"{", r"config\.json cannot be read"),
        ("config.json", b"[]", "holds no JSON object"),
        ("model.safetensors", b"\x08", "The weights .* cannot be read"),
        ("model.safetensors.index.json", b"{}", "has no weight_map"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelUnavailable, match=sentence):
        load_model(source_of(tmp_path), "cpu", torch.float32)


def test_a_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoder": None}))
    with pytest.raises(ModelUnavailable, match="only ByteLevel is supported"):
        load_tokenizer(source_of(tmp_path))
    file.write_text("{}")
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(source_of(tmp_path))


def test_merges_markers_and_padding(tokenizer: HfTokenizer) -> None:
    ids = tokenizer.encode("hello w</s>")
    assert [tokenizer.token_bytes([token]) for token in ids] == [b"hell", b"o", b" w", b""]
    assert tokenizer.eos_ids == {EOS, EOS + 2}
    assert tokenizer.token_bytes([tokenizer.vocab_size - 1]) == b""


@given(text=st.text().filter(lambda text: "<" not in text))
def test_round_trip(tokenizer: HfTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_models_own_chat_template_is_rendered(tokenizer: HfTokenizer) -> None:
    prompt = tokenizer.chat_prompt([("system", "Be kind."), ("user", "Hi")])
    assert prompt == "<s>[system] Be kind.\n[user] Hi\n[assistant] "
    assert tokenizer.encode(prompt).count(BOS) == 1


def test_a_template_file_comes_first_and_may_refuse(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no ' ~ messages[0].role) }}")
    with pytest.raises(ValueError, match="no king"):
        load_tokenizer(source_of(tmp_path)).chat_prompt([("king", "x")])
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelUnavailable, match=r"chat template of .* cannot be compiled"):
        load_tokenizer(source_of(tmp_path))


def test_without_jinja_or_template_it_is_chatml(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chatml = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    save_checkpoint(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(source_of(tmp_path)).chat_prompt([("user", "Hi")]) == chatml
    monkeypatch.setattr(hf_tokenizer, "find_spec", lambda name: None if name == "jinja2" else name)
    assert load_tokenizer(source_of(checkpoint)).chat_prompt([("user", "Hi")]) == chatml
