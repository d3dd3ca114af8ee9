"""A tiny random Llama as ``transformers`` saves it, with a byte-level vocabulary made here."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from instrumented_engine.model.byte_level import ALPHABET

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w")]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
VOCAB = [*ALPHABET, *("".join(merge) for merge in MERGES)]
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
BOS, EOS = len(VOCAB), len(VOCAB) + 1


def save_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(VOCAB)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def save_checkpoint(path: Path, *, tied: bool = False, seed: int = 0, shard_size: str = "1GB") -> Any:
    """Write the directory and return the model that was written, in float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(VOCAB) + len(SPECIAL) + 4,  # a padded embedding, as many checkpoints have
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
        # Large weights make likely tokens stand out, so that no rounding decides between two of them.
        initializer_range=0.4,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval()
    model.generation_config.update(bos_token_id=BOS, eos_token_id=[EOS, EOS + 2], pad_token_id=EOS)
    model.save_pretrained(path, max_shard_size=shard_size)
    save_tokenizer(path)
    return model


def edit_config(path: Path, **changes: Any) -> None:
    """Change values of ``config.json``."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
