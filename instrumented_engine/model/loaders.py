"""Weights into a ``Llama``."""

import math

import torch
from torch import Tensor

from instrumented_engine.model.config import DUMMY_CONFIG, ModelConfig
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.model.weight_files import WeightFile

DUMMY_SEED = 8192


def load_config(source: ModelSource) -> ModelConfig:
    """Return the shape of a model without reading its weights.

    Raises:
        ModelUnavailable: the file cannot be read, or holds a model of another kind.
    """
    return DUMMY_CONFIG if source.format == "dummy" else _open(source).config


def load_model(source: ModelSource, device: torch.device | str, dtype: torch.dtype) -> Llama:
    """Read or make a model's weights, in ``dtype`` on ``device``; the dummy's are the same on every run.

    Raises:
        ModelUnavailable: the file cannot be read, or holds a model of another kind.
    """
    if source.format == "dummy":
        return Llama(DUMMY_CONFIG, _dummy_weights(DUMMY_CONFIG, device, dtype))
    file = _open(source)
    return Llama(file.config, _weights(file, device, dtype))


# The readers are optional dependencies which the dummy model does without.
def _open(source: ModelSource) -> WeightFile:
    if source.format == "safetensors":
        from instrumented_engine.model.safetensors_file import SafetensorsWeights  # noqa: PLC0415

        return SafetensorsWeights(source.file)
    from instrumented_engine.model.gguf_weights import GgufWeights  # noqa: PLC0415

    return GgufWeights(source.file)


def _weights(file: WeightFile, device: torch.device | str, dtype: torch.dtype) -> dict[str, Tensor]:
    parts = file.names.parts(file.config.num_layers)
    if file.tied:
        del parts["head.weight"]
    _refuse_unused(file, parts)
    shapes = _shapes(file.config)
    weights = {name: _stack(file, stacked, shapes[name]).to(device, dtype) for name, stacked in parts.items()}
    if file.tied:
        weights["head.weight"] = weights["embed.weight"]
    return weights


def _stack(file: WeightFile, names: list[str], shape: tuple[int, ...]) -> Tensor:
    tensors = [file.tensor(name) for name in names]
    if any(tensor.shape[1:] != shape[1:] for tensor in tensors) or sum(map(len, tensors)) != shape[0]:
        raise ModelUnavailable(f"In {file.path}, {' and '.join(names)} do not have the sizes its metadata says.")
    return torch.cat(tensors)


def _refuse_unused(file: WeightFile, parts: dict[str, list[str]]) -> None:
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
