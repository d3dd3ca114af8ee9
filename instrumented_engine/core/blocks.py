"""Blocks of the KV cache and the sequences that own them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
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
    logprobs: int = -1
    """How many likeliest tokens to report beside each sampled one; -1 reports nothing."""
    cached_tokens: int = -1
    """Tokens that were in the cache when it was first scheduled; -1 before that."""
    digests: list[bytes] = field(default_factory=list)
    """Hashes of its full blocks, as far as they were needed."""
    remembered: int = 0
    """Blocks whose content the pool knows."""

    @property
    def uncomputed(self) -> int:
        """Tokens that the next steps must compute before one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_length


class BlockPool:
    """Hands out fixed-size blocks of the KV cache, and remembers what full blocks hold.

    A full block is known by the hash of its tokens and of everything before them. Sequences that begin alike own the
    same blocks; a block that nobody owns keeps its content until it is the one unused for longest.
    """

    def __init__(self, num_blocks: int, block_tokens: int, *, prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._prefix_cache = prefix_cache
        self._owners = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """Next to be handed out first."""
        self._hash_of: list[bytes] = [b""] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def used(self) -> int:
        """Blocks owned by sequences."""
        return self.num_blocks - len(self._free)

    @property
    def cached(self) -> int:
        """Blocks whose content a new sequence could take over."""
        return len(self._block_of)

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Give the sequence blocks for its first ``length`` tokens; False and no change when too few are free."""
        missing = -(-length // self.block_tokens) - len(sequence.blocks)
        if missing > len(self._free):
            return False
        if missing > 0:
            self._give(sequence, [self._take_oldest() for _ in range(missing)])
        return True

    def match(self, sequence: Sequence) -> list[int]:
        """The cached blocks that the sequence begins with.

        At least one token is left to compute: only that gives logits to sample from.
        """
        if not self._prefix_cache:
            return []
        blocks: list[int] = []
        for digest in self._digests(sequence, (len(sequence.tokens) - 1) // self.block_tokens):
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def begin(self, sequence: Sequence, cached: list[int], length: int) -> bool:
        """Give a sequence without blocks what ``match`` found and room for ``length`` tokens in all.

        False and no change when too few blocks are free.
        """
        missing = -(-length // self.block_tokens) - len(cached)
        if missing > len(self._free) - sum(block in self._free for block in cached):
            return False
        for block in cached:
            self._owners[block] += 1
            self._free.pop(block, None)
        self._give(sequence, cached + [self._take_oldest() for _ in range(missing)])
        sequence.remembered = len(cached)
        sequence.computed = len(cached) * self.block_tokens
        return True

    def remember(self, sequence: Sequence, length: int) -> None:
        """Make the full blocks of the first ``length`` tokens known; the step about to run computes them.

        Before the step and not after it, so that sequences which begin together share: every layer writes the keys of
        the whole batch before it reads any.
        """
        full = length // self.block_tokens
        if not self._prefix_cache or full <= sequence.remembered:
            return
        digests = self._digests(sequence, full)
        for position in range(sequence.remembered, full):
            block, digest = sequence.blocks[position], digests[position]
            if digest not in self._block_of:
                self._block_of[digest] = block
                self._hash_of[block] = digest
        sequence.remembered = full

    def forget(self, sequence: Sequence) -> None:
        """Trust the content of the sequence's blocks no more: the step that should have computed them failed."""
        for block in sequence.blocks:
            self._drop_content(block)

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of the sequence; what it shared stays with the others."""
        for block in reversed(sequence.blocks):  # a beginning is worth more than what follows it: it goes last
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free[block] = None
                self._free.move_to_end(block, last=bool(self._hash_of[block]))
        sequence.blocks.clear()
        sequence.slots = np.empty(0, dtype=np.int64)
        sequence.computed = sequence.remembered = 0

    def _give(self, sequence: Sequence, blocks: list[int]) -> None:
        sequence.blocks += blocks
        sequence.slots = np.concatenate((sequence.slots, self._slots_of(blocks)))

    def _take_oldest(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._owners[block] = 1
        self._drop_content(block)
        return block

    def _drop_content(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest:
            del self._block_of[digest]
            self._hash_of[block] = b""

    def _digests(self, sequence: Sequence, count: int) -> list[bytes]:
        """Hashes of the first ``count`` full blocks. SHA-256: a collision would answer with another prompt's text."""
        digests = sequence.digests
        for position in range(len(digests), count):
            tokens = sequence.tokens[position * self.block_tokens : (position + 1) * self.block_tokens]
            parent = digests[-1] if digests else b""
            digests.append(sha256(parent + array("i", tokens).tobytes()).digest())
        return digests[:count]

    def _slots_of(self, blocks: Iterable[int]) -> NDArray[np.int64]:
        starts = np.fromiter(blocks, dtype=np.int64) * self.block_tokens
        slots: NDArray[np.int64] = (starts[:, None] + np.arange(self.block_tokens)).ravel()
        return slots
