"""Storage for keys and values, addressed by slot; who owns which block is decided elsewhere."""

import torch
from torch import Tensor

from instrumented_engine.model.config import ModelConfig


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes that one block of ``block_size`` tokens takes over all layers, keys and values together."""
    return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


class KVCache:
    """Keys and values of ``num_blocks * block_size`` tokens.

    Attributes:
        keys: One ``[num_blocks * block_size, kv_heads, head_dim]`` tensor per layer.
        values: Likewise.
        num_blocks: Blocks in the cache.
        block_size: Tokens per block.
        bytes_per_block: Bytes of one block over all layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """Allocate the whole cache at once.

        Raises:
            ValueError: ``num_blocks`` or ``block_size`` is not positive.
        """
        if num_blocks <= 0 or block_size <= 0:
            raise ValueError(f"A cache needs blocks, not {num_blocks} blocks of {block_size} tokens.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.bytes_per_block = bytes_per_block(config, block_size, dtype)
        shape = (num_blocks * block_size, config.num_kv_heads, config.head_dim)
        # Zeros and not empty: padded decodes read slot 0 before anything is written there, and a NaN in a masked
        # value would still poison the sum.
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store new tokens' keys and values, each ``[T, kv_heads, head_dim]``, at ``slots [T] int64``."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)
