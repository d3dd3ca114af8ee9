"""Continuous batching with chunked prefill and pre-emption: which tokens the next step computes.

Pure bookkeeping: no torch, no clock, no I/O. Prefill and decode are one case, a sequence with uncomputed tokens: a
running one usually has a single one (the token just sampled), a new one its whole prompt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from instrumented_engine.core.blocks import BlockPool, Sequence


@dataclass(slots=True, frozen=True)
class Chunk:
    """``length`` tokens of a sequence, from position ``start``."""

    sequence: Sequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the sequence's last known token, so that the next can be sampled."""
        return self.start + self.length == len(self.sequence.tokens)


class Scheduler:
    """Owns the waiting and the running sequences."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool = pool
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.queried_tokens = 0
        """Prompt tokens of all sequences that were started."""
        self.hit_tokens = 0
        """Those of them that were in the cache."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.release(sequence)

    def fail(self, sequence: Sequence) -> None:
        """Forget a sequence whose step failed, and what the step should have written."""
        self.pool.forget(sequence)
        self.finish(sequence)

    def find(self, request_id: int) -> Sequence | None:
        """The sequence of a request, None when it is not here (any more)."""
        return next((s for s in (*self.running, *self.waiting) if s.request_id == request_id), None)

    def schedule(self) -> list[Chunk]:
        """The next step: running sequences first, then waiting ones while tokens, places and blocks last."""
        chunks: list[Chunk] = []
        preempted = self.preemptions
        budget = self._schedule_running(chunks)
        if self.preemptions == preempted:
            self._schedule_waiting(chunks, budget)
        return chunks

    def _schedule_running(self, chunks: list[Chunk]) -> int:
        budget = self._max_num_batched_tokens
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            length = min(sequence.uncomputed, budget)
            if self._reserve_or_preempt(sequence, length):
                self._add_chunk(chunks, sequence, length)
                budget -= length
                position += 1
        return budget

    def _reserve_or_preempt(self, sequence: Sequence, length: int) -> bool:
        """Reserve room; take it from the newest running sequences if need be, at last from the sequence itself."""
        while not self.pool.reserve(sequence, sequence.computed + length):
            victim = self.running.pop()
            self.pool.release(victim)
            self.waiting.appendleft(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _schedule_waiting(self, chunks: list[Chunk], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            cached = self.pool.match(sequence)
            reused = len(cached) * self.pool.block_tokens
            length = min(len(sequence.tokens) - reused, budget)
            if not self.pool.begin(sequence, cached, reused + length):
                return
            self.running.append(self.waiting.popleft())
            self._count_reuse(sequence, reused)
            self._add_chunk(chunks, sequence, length)
            budget -= length

    def _add_chunk(self, chunks: list[Chunk], sequence: Sequence, length: int) -> None:
        chunks.append(Chunk(sequence, sequence.computed, length))
        self.pool.remember(sequence, sequence.computed + length)

    def _count_reuse(self, sequence: Sequence, reused: int) -> None:
        if sequence.cached_tokens < 0:  # one that starts again after pre-emption finds its own blocks
            sequence.cached_tokens = reused
            self.queried_tokens += sequence.prompt_length
            self.hit_tokens += reused
