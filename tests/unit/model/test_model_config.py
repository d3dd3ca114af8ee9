"""Shapes that cannot be are refused in words, and the API's rooms stay free of torch."""

import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from instrumented_engine.model.config import DUMMY_CONFIG, ModelConfig

SIZES = [field.name for field in fields(ModelConfig) if field.name != "rope_interleaved"]
ROOT = Path(__file__).parents[3]
WITHOUT_TORCH = ["config", "source", "tokenizers", "gguf_tokenizer", "gguf_file", "sampling", "chat", "hf_tokenizer"]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        ModelConfig(**(asdict(DUMMY_CONFIG) | {name: 0}))


def test_query_heads_share_evenly() -> None:
    with pytest.raises(ValueError, match="4 query heads cannot share 3"):
        replace(DUMMY_CONFIG, num_kv_heads=3)


def test_rotary_channels_pair() -> None:
    with pytest.raises(ValueError, match="must be even, not 15"):
        replace(DUMMY_CONFIG, head_dim=15)


def test_api_rooms_do_not_import_torch() -> None:
    modules = ", ".join(f"instrumented_engine.model.{name}" for name in WITHOUT_TORCH)
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
