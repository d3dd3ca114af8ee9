"""Weights into a ``Llama``."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from instrumented_engine.model.config import DUMMY_CONFIG, ModelConfig
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.source import ModelSource, ModelUnavailable

if TYPE_CHECKING:
    from instrumented_engine.model.gguf_file import GgufFile

DUMMY_SEED = 8192

# Our name within a layer or at the top: the tensors of a GGUF file that are stacked to make it.
LAYER_PARTS = {
    "attn_norm": ("attn_norm",),
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_out": ("attn_output",),
    "ffn_norm": ("ffn_norm",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}
TOP_PARTS = {"embed": ("token_embd",), "norm": ("output_norm",), "head": ("output",)}


def load_config(source: ModelSource) -> ModelConfig:
    """Return the shape of a model without reading its weights.

    Raises:
        ModelUnavailable: the file cannot be read, or holds a model of another kind.
    """
    if source.format == "dummy":
        return DUMMY_CONFIG
    return _read_config(_open_gguf(source))


def load_model(source: ModelSource, device: torch.device | str, dtype: torch.dtype) -> Llama:
    """Read or make a model's weights, in ``dtype`` on ``device``; the dummy's are the same on every run.

    Raises:
        ModelUnavailable: the file cannot be read, or holds a model of another kind.
    """
    if source.format == "dummy":
        return Llama(DUMMY_CONFIG, _dummy_weights(DUMMY_CONFIG, device, dtype))
    file = _open_gguf(source)
    config = _read_config(file)
    return Llama(config, _gguf_weights(file, config, device, dtype))


# The GGUF reader is an optional dependency which the dummy model does without.
def _open_gguf(source: ModelSource) -> "GgufFile":
    from instrumented_engine.model.gguf_file import GgufFile  # noqa: PLC0415

    return GgufFile(source.file)


def _read_config(file: "GgufFile") -> ModelConfig:
    from instrumented_engine.model.gguf_file import read_config  # noqa: PLC0415

    return read_config(file)


def _gguf_weights(
    file: "GgufFile", config: ModelConfig, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    parts = _gguf_parts(config)
    tied = "output.weight" not in file.tensor_names
    if tied:
        del parts["head.weight"]
    _refuse_unused(file, parts)
    shapes = _shapes(config)
    weights = {name: _stack(file, stacked, shapes[name]).to(device, dtype) for name, stacked in parts.items()}
    if tied:
        weights["head.weight"] = weights["embed.weight"]
    return weights


def _gguf_parts(config: ModelConfig) -> dict[str, list[str]]:
    parts = {f"{ours}.weight": [f"{part}.weight" for part in stacked] for ours, stacked in TOP_PARTS.items()}
    for index in range(config.num_layers):
        for ours, stacked in LAYER_PARTS.items():
            parts[f"layers.{index}.{ours}.weight"] = [f"blk.{index}.{part}.weight" for part in stacked]
    return parts


def _stack(file: "GgufFile", names: list[str], shape: tuple[int, ...]) -> Tensor:
    tensors = [torch.from_numpy(file.tensor(name)) for name in names]
    if any(tensor.shape[1:] != shape[1:] for tensor in tensors) or sum(map(len, tensors)) != shape[0]:
        raise ModelUnavailable(f"In {file.path}, {' and '.join(names)} do not have the sizes its metadata says.")
    return torch.cat(tensors)


def _refuse_unused(file: "GgufFile", parts: dict[str, list[str]]) -> None:
    # A bias or a frequency table left out would still give fluent, wrong text.
    unused = file.tensor_names.difference(*parts.values())
    if unused:
        raise ModelUnavailable(f"{file.path} holds tensors this engine would ignore, such as {min(unused)}.")


def _dummy_weights(config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> dict[str, Tensor]:
    # Made on the CPU in float32 whatever is asked for, so that every device and dtype has the same model.
    generator = torch.Generator().manual_seed(DUMMY_SEED)
    return {name: _dummy_tensor(shape, generator).to(device, dtype) for name, shape in _shapes(config).items()}


def _dummy_tensor(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (config.vocab_size, hidden),
        "norm.weight": (hidden,),
        "head.weight": (config.vocab_size, hidden),
    }
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "qkv": (heads + 2 * config.num_kv_heads * config.head_dim, hidden),
        "attn_out": (hidden, heads),
        "ffn_norm": (hidden,),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    for index in range(config.num_layers):
        shapes.update({f"layers.{index}.{name}.weight": shape for name, shape in layer.items()})
    return shapes
