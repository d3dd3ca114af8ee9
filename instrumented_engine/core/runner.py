"""Turns the scheduler's chunks into tensors, runs the model and samples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from instrumented_engine.core.scheduler import Chunk
from instrumented_engine.model.batch import Batch, PrefillChunk
from instrumented_engine.model.cache import KVCache
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.sampler import log_probabilities, sample
from instrumented_engine.wire import Logprobs, pack_logprobs
from telemetry.scoreboard import HistogramWriter


@dataclass(slots=True, frozen=True)
class Sampled:
    """What a step sampled: ``tokens[i]`` follows ``chunks[i]``."""

    chunks: list[Chunk]
    tokens: list[int]
    logprobs: Logprobs | None = None


class ForwardTimer:
    """Time of each forward pass on its device.

    On CUDA the pass is asynchronous: events are recorded around it and read at a later step, when they have completed
    by themselves, so that measuring never synchronizes.
    """

    def __init__(self, device: torch.device, histogram: HistogramWriter) -> None:
        self._cuda = device.type == "cuda"
        self._histogram = histogram
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._started_ns = 0

    def start(self) -> None:
        """Right before the forward pass."""
        if not self._cuda:
            self._started_ns = time.perf_counter_ns()
            return
        self._collect()
        start, end = _event(), _event()
        start.record()
        self._pending.append((start, end))

    def stop(self) -> None:
        """Right after the forward pass was launched."""
        if self._cuda:
            self._pending[-1][1].record()
        else:
            self._histogram.observe(time.perf_counter_ns() - self._started_ns)

    def _collect(self) -> None:
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._pending.popleft()
            self._histogram.observe(int(start.elapsed_time(end) * 1e6))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class ModelRunner:
    """Runs one step at a time on one device."""

    def __init__(self, model: Llama, cache: KVCache, device: torch.device, timer: ForwardTimer) -> None:
        self._model = model
        self._cache = cache
        self._device = device
        self._timer = timer

    def run(self, chunks: Seq[Chunk]) -> Sampled:
        """Compute the chunks and sample one token for each that completes its sequence."""
        ordered = sorted(chunks, key=lambda chunk: chunk.length == 1)
        sampling = [chunk for chunk in ordered if chunk.samples]
        batch = self._build(ordered)
        self._timer.start()
        logits = self._model(batch, self._cache)
        self._timer.stop()
        if not sampling:
            return Sampled([], [])
        tokens = sample(
            logits,
            [chunk.sequence.sampling for chunk in sampling],
            [chunk.sequence.generator for chunk in sampling],
        )
        return Sampled(sampling, tokens, _logprobs(logits, sampling, tokens))

    def _build(self, chunks: Seq[Chunk]) -> Batch:
        prefills = [chunk for chunk in chunks if chunk.length > 1]
        decodes = [chunk for chunk in chunks if chunk.length == 1]
        ends = np.cumsum([chunk.length for chunk in chunks])
        decode_slots, decode_lengths = _decode_context(decodes)
        return Batch(
            token_ids=self._tensor(_gather(c.sequence.tokens[c.start : c.start + c.length] for c in chunks)),
            positions=self._tensor(_gather(np.arange(c.start, c.start + c.length) for c in chunks)),
            cache_slots=self._tensor(_gather(c.sequence.slots[c.start : c.start + c.length] for c in chunks)),
            prefills=tuple(
                PrefillChunk(
                    start=int(end - chunk.length),
                    length=chunk.length,
                    context_slots=self._tensor(chunk.sequence.slots[: chunk.start + chunk.length]),
                )
                for chunk, end in zip(prefills, ends, strict=False)
            ),
            decode_start=sum(chunk.length for chunk in prefills),
            decode_slots=self._tensor(decode_slots),
            decode_lengths=self._tensor(decode_lengths),
            logit_rows=self._tensor(np.asarray([end - 1 for c, end in zip(chunks, ends, strict=True) if c.samples])),
        )

    def _tensor(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64, copy=True)).to(self._device, non_blocking=True)


def _logprobs(logits: torch.Tensor, chunks: Seq[Chunk], tokens: Seq[int]) -> Logprobs | None:
    """The columns for those who asked; None, and no work, when nobody did."""
    rows = [row for row, chunk in enumerate(chunks) if chunk.sequence.logprobs >= 0]
    if not rows:
        return None
    width = max(chunks[row].sequence.logprobs for row in rows)
    chosen, ids, top = log_probabilities(logits[rows], [tokens[row] for row in rows], width)
    return pack_logprobs(rows, chosen.numpy(), ids.numpy(), top.numpy())


def _gather(pieces: object) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])  # type: ignore[attr-defined]


def _decode_context(decodes: Seq[Chunk]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cache slots of every decode's context, padded with 0, and the context lengths."""
    lengths = np.asarray([chunk.start + 1 for chunk in decodes], dtype=np.int64)
    slots = np.zeros((len(decodes), int(lengths.max(initial=0))), dtype=np.int64)
    for row, chunk in enumerate(decodes):
        slots[row, : lengths[row]] = chunk.sequence.slots[: lengths[row]]
    return slots, lengths
