"""The shape of a Llama-style model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Dimensions of a decoder; every size is a count, not bytes.

    ``rope_interleaved`` tells which channels a rotation pairs: neighbours (2i, 2i+1) as in GGUF files, whose query
    and key rows are permuted for it, or halves (i, i + head_dim/2) as in safetensors files.

    Raises:
        ValueError: a size is not positive, or sizes do not fit each other.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    rope_interleaved: bool = False

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"A model's {name} must be positive, not {getattr(self, name)}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads evenly.")
        if self.head_dim % 2:
            raise ValueError(f"Rotary positions pair channels, so head_dim must be even, not {self.head_dim}.")


_POSITIVE = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_positions",
    "rope_theta",
    "rms_norm_eps",
)

DUMMY_CONFIG = ModelConfig(
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=260,
    max_positions=8192,
)
"""The built-in ``dummy`` model: its ids are the 256 bytes and four markers."""
