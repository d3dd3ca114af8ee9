"""The weights of a Hugging Face directory: one or several safetensors files."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from instrumented_engine.model.hf_directory import HfDirectory, read_hf_config
from instrumented_engine.model.source import ModelUnavailable
from instrumented_engine.model.weight_files import TensorNames

NAMES = TensorNames(
    "model.layers.{}.",
    {
        "attn_norm": ("input_layernorm",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn_out": ("self_attn.o_proj",),
        "ffn_norm": ("post_attention_layernorm",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    },
    {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
)
HEAD = "lm_head.weight"
DERIVED = ".rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies, which follow from the configuration."""


class SafetensorsWeights:
    """A Hugging Face directory as a ``WeightFile``."""

    names = NAMES

    def __init__(self, path: Path) -> None:
        """Map the files into memory.

        Raises:
            ModelUnavailable: a file is missing or damaged, or holds a model of another kind.
        """
        directory = HfDirectory(path)
        self.path = path
        self.config = read_hf_config(directory)
        self.tied = directory.tied
        self._files = [_open(shard) for shard in directory.shards()]
        self._home = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - no mapping
        ignored = {HEAD} if self.tied else set()
        self.tensor_names = frozenset(name for name in self._home if not name.endswith(DERIVED)) - ignored

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in the format it is stored in.

        Raises:
            ModelUnavailable: there is no such tensor, or it cannot be read.
        """
        file = self._home.get(name)
        if file is None:
            raise ModelUnavailable(f"The model directory {self.path} lacks the tensor {name}.")
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(f"The weights {path} cannot be read: {error}") from error
