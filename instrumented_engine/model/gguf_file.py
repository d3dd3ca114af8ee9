"""Reading GGUF files: metadata, tensors and the model shape; numpy only, no torch."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from instrumented_engine.model.config import ModelConfig
from instrumented_engine.model.source import ModelUnavailable

ARCHITECTURE = "llama"


class GgufFile:
    """A GGUF file, mapped into memory; a tensor is read when it is asked for.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            ModelUnavailable: the file is damaged, or of a GGUF version that is not supported.
        """
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, LookupError, OverflowError, struct.error) as error:
            raise ModelUnavailable(f"The GGUF file {path} cannot be read: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors in the file."""
        return frozenset(self._tensors)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value, or ``default`` if the file has none under ``key``."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """Return a metadata value.

        Raises:
            ModelUnavailable: the file has none under ``key``.
        """
        value = self.get(key)
        if value is None:
            raise ModelUnavailable(f"The GGUF file {self.path} lacks the metadata {key}.")
        return value

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor dequantised to float32, a fresh array in row-major order ``[out, in]``.

        Raises:
            ModelUnavailable: the file has no such tensor, or stores it in a format that cannot be dequantised.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelUnavailable(f"The GGUF file {self.path} lacks the tensor {name}.")
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelUnavailable(f"The tensor {name} of {self.path} cannot be dequantised: {error}") from error
        return np.array(values, dtype=np.float32, order="C")


def read_config(file: GgufFile) -> ModelConfig:
    """Return the shape of the model in a GGUF file.

    Raises:
        ModelUnavailable: the file holds another architecture, lacks a size, or scales rotary positions.
    """
    architecture = file.require("general.architecture")
    if architecture != ARCHITECTURE:
        raise ModelUnavailable(f"{file.path} holds a {architecture} model, and only {ARCHITECTURE} models are served.")
    scaling = file.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelUnavailable(f"{file.path} scales rotary positions ({scaling}), which is not supported.")
    try:
        return _config(file)
    except ModelUnavailable:
        raise
    except ValueError as error:
        raise ModelUnavailable(f"The GGUF file {file.path} describes no usable model: {error}") from error


def _config(file: GgufFile) -> ModelConfig:
    def size(key: str) -> int:
        return int(file.require(f"{ARCHITECTURE}.{key}"))

    hidden_size, num_heads = size("embedding_length"), size("attention.head_count")
    head_dim = int(file.get(f"{ARCHITECTURE}.rope.dimension_count", hidden_size // num_heads))
    return ModelConfig(
        hidden_size=hidden_size,
        num_layers=size("block_count"),
        num_heads=num_heads,
        num_kv_heads=int(file.get(f"{ARCHITECTURE}.attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        intermediate_size=size("feed_forward_length"),
        vocab_size=len(file.require("tokenizer.ggml.tokens")),
        max_positions=size("context_length"),
        rope_theta=float(file.get(f"{ARCHITECTURE}.rope.freq_base", 10_000.0)),
        rms_norm_eps=float(file.require(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon")),
        # Converters to GGUF permute the query and key rows of llama models so that rotations pair neighbours.
        rope_interleaved=True,
    )
