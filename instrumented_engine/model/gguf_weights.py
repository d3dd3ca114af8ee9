"""The weights of a GGUF file as torch tensors."""

from pathlib import Path

import torch
from torch import Tensor

from instrumented_engine.model.gguf_file import GgufFile, read_config
from instrumented_engine.model.weight_files import TensorNames

NAMES = TensorNames(
    "blk.{}.",
    {
        "attn_norm": ("attn_norm",),
        "qkv": ("attn_q", "attn_k", "attn_v"),
        "attn_out": ("attn_output",),
        "ffn_norm": ("ffn_norm",),
        "gate_up": ("ffn_gate", "ffn_up"),
        "down": ("ffn_down",),
    },
    {"embed": "token_embd", "norm": "output_norm", "head": "output"},
)


class GgufWeights:
    """A GGUF file as a ``WeightFile``."""

    names = NAMES

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            ModelUnavailable: the file is damaged, or holds a model of another kind.
        """
        self.path = path
        self._file = GgufFile(path)
        self.config = read_config(self._file)
        self.tensor_names = self._file.tensor_names
        self.tied = "output.weight" not in self.tensor_names

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, dequantised to float32.

        Raises:
            ModelUnavailable: there is no such tensor, or its format cannot be dequantised.
        """
        return torch.from_numpy(self._file.tensor(name))
