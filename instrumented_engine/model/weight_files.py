"""What a loader asks of a file of weights, and how such files name their tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from instrumented_engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How one format names the tensors that are stacked to make ours.

    Attributes:
        layer_prefix: Prefix of a layer's tensors, with ``{}`` for its number.
        layer: Our name within a layer: theirs, in the order of stacking.
        top: Our name at the top: theirs.
    """

    layer_prefix: str
    layer: Mapping[str, tuple[str, ...]]
    top: Mapping[str, str]

    def parts(self, num_layers: int) -> dict[str, list[str]]:
        """Return for each of our weights the names of the tensors that make it."""
        parts = {f"{ours}.weight": [f"{theirs}.weight"] for ours, theirs in self.top.items()}
        for index in range(num_layers):
            prefix = self.layer_prefix.format(index)
            for ours, stacked in self.layer.items():
                parts[f"layers.{index}.{ours}.weight"] = [f"{prefix}{part}.weight" for part in stacked]
        return parts


class WeightFile(Protocol):
    """A model's weights on disk; a tensor is read when it is asked for.

    Attributes:
        path: The file or directory.
        config: The model's shape.
        names: How its tensors are named.
        tied: Whether the output layer is the embedding.
        tensor_names: Names of the tensors that must all be used.
    """

    path: Path
    config: ModelConfig
    names: TensorNames
    tied: bool
    tensor_names: frozenset[str]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor ``[out, in]``.

        Raises:
            ModelUnavailable: there is no such tensor, or it cannot be read.
        """
