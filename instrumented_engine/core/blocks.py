"""Blocks of the KV cache and the sequences that own them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from telemetry.records import Repeats

if TYPE_CHECKING:
    import torch

    from instrumented_engine.model.sampling import SamplingParams


@dataclass(slots=True, eq=False)
class Sequence:
    """One request while the core works on it."""

    request_id: int
    tokens: list[int]
    """Prompt, then what was generated."""
    prompt_length: int
    max_tokens: int
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    stamps: list[int]
    """In the order of ``telemetry.stages.CORE_STAMPS``."""
    trace_id: bytes
    span_id: bytes
    generator: torch.Generator | None = None
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: list[int] = field(default_factory=list)
    slots: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Cache slot of each token that the owned blocks have room for."""
    forward: Repeats = field(default_factory=Repeats)

    @property
    def uncomputed(self) -> int:
        """Tokens that the next steps must compute before one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_length


class BlockPool:
    """Hands out fixed-size blocks of the KV cache."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def used(self) -> int:
        """Blocks owned by sequences."""
        return self.num_blocks - len(self._free)

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Give the sequence blocks for its first ``length`` tokens; False and no change when too few are free."""
        missing = -(-length // self.block_tokens) - len(sequence.blocks)
        if missing > len(self._free):
            return False
        if missing > 0:
            fresh = [self._free.pop() for _ in range(missing)]
            sequence.blocks += fresh
            sequence.slots = np.concatenate((sequence.slots, self._slots_of(fresh)))
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of the sequence."""
        self._free += reversed(sequence.blocks)
        sequence.blocks.clear()
        sequence.slots = np.empty(0, dtype=np.int64)
        sequence.computed = 0

    def _slots_of(self, blocks: Iterable[int]) -> NDArray[np.int64]:
        starts = np.fromiter(blocks, dtype=np.int64) * self.block_tokens
        slots: NDArray[np.int64] = (starts[:, None] + np.arange(self.block_tokens)).ravel()
        return slots
