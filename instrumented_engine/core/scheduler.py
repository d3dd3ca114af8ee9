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
                chunks.append(Chunk(sequence, sequence.computed, length))
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
            length = min(sequence.uncomputed, budget)
            if not self.pool.reserve(sequence, length):
                return
            self.running.append(self.waiting.popleft())
            chunks.append(Chunk(sequence, 0, length))
            budget -= length
