"""The core's main thread: take messages, schedule, run a step, queue what it produced."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence as Seq

from instrumented_engine import faults, wire
from instrumented_engine.core.blocks import Sequence
from instrumented_engine.core.input_thread import InputQueue
from instrumented_engine.core.output_thread import OutputQueue
from instrumented_engine.core.runner import ModelRunner, Sampled
from instrumented_engine.core.scheduler import Chunk, Scheduler
from instrumented_engine.model.sampler import make_generator
from instrumented_engine.model.sampling import SamplingParams
from telemetry.layout import CORE
from telemetry.records import StepRecord
from telemetry.scoreboard import Writer
from telemetry.stages import CORE_STAMPS, Phase, Stamp

_SLOT = CORE.slot_index
_PHASE, _PHASE_STARTED = _SLOT["phase"], _SLOT["phase_started_ns"]
_STEPS, _STEP_TOKENS = _SLOT["steps"], _SLOT["step_tokens"]
_INPUT_DEPTH, _OUTPUT_DEPTH = _SLOT["input_queue_depth"], _SLOT["output_queue_depth"]
_WAITING, _RUNNING, _BLOCKS_USED = _SLOT["requests_waiting"], _SLOT["requests_running"], _SLOT["kv_blocks_used"]
_TAKEN, _QUEUED_OUT = _SLOT["input_messages_taken"], _SLOT["output_messages_queued"]
_WAITING_OLDEST, _RUNNING_OLDEST = _SLOT["waiting_oldest_ns"], _SLOT["running_oldest_ns"]
_LONGEST = _SLOT["step_longest_ns"]
_LONGEST_WINDOW = 64
_PREFIX_QUERIED, _PREFIX_HIT = _SLOT["prefix_cache_queried_tokens"], _SLOT["prefix_cache_hit_tokens"]
_ABORTED, _FAILED = _SLOT["requests_aborted"], _SLOT["requests_failed"]
_PREEMPTIONS = _SLOT["preemptions"]
_log = logging.getLogger(__name__)
_QUEUED, _SCHEDULED, _FIRST, _LAST = (
    CORE_STAMPS.index(stamp) for stamp in (Stamp.INPUT_QUEUED, Stamp.SCHEDULED, Stamp.FIRST_SAMPLED, Stamp.LAST_SAMPLED)
)


class CoreLoop:
    """One model, one batch. ``run`` is the process's main thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        input_queue: InputQueue,
        output_queue: OutputQueue,
        page: Writer,
        max_model_len: int,
        vocab_size: int,
        step_trace_ratio: float,
        core_index: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._input = input_queue
        self._output = output_queue
        self._slots = page.slots
        self._max_tokens = min(max_model_len, scheduler.pool.num_blocks * scheduler.pool.block_tokens)
        self._vocab_size = vocab_size
        self._step_trace_ratio = step_trace_ratio
        self._core_index = core_index
        self._step_time = page.histogram("step")
        self._input_wait = page.histogram("input_queue_wait")
        self._ring = page.ring()
        self._finished: list[wire.Finished] = []
        self._longest = self._longest_before = 0
        self._stopping = False

    def stop(self, *_: object) -> None:
        """Leave after the current step; safe in a signal handler (SimpleQueue.put is reentrant)."""
        self._stopping = True
        self._input.put(None)

    def run(self) -> None:
        """Until ``stop``."""
        while not self._stopping:
            self._take_input()
            if self._scheduler.has_work:
                self._step()

    def _take_input(self) -> None:
        """Everything that is queued; wait for something when there is no other work."""
        while True:
            if self._input.empty():
                self._publish_finished()
                if self._scheduler.has_work or self._stopping:
                    return
                self._set_phase(Phase.IDLE)
            item = self._input.get()
            self._set_phase(Phase.INPUT)
            self._slots[_INPUT_DEPTH] = self._input.qsize()
            if item is not None:
                self._slots[_TAKEN] += 1
                self._handle(*item)

    def _handle(self, message: wire.InputMessage, queued_ns: int) -> None:
        self._input_wait.observe(time.time_ns() - queued_ns)
        if isinstance(message, wire.Submit):
            self._admit(message, queued_ns)
        else:
            self._abort(message)

    def _admit(self, message: wire.Submit, queued_ns: int) -> None:
        try:
            sequence = _new_sequence(message, queued_ns)
            self._check(sequence)
        except ValueError as error:
            self._slots[_FAILED] += 1
            stamps = [queued_ns, 0, 0, 0]
            self._finished.append(wire.Finished(message.request_id, "error", stamps, (0, 0, 0), 0, str(error)))
            return
        self._scheduler.add(sequence)

    def _check(self, sequence: Sequence) -> None:
        """Refuse what would break a later step; the API process has checked the same for its own requests."""
        needed = sequence.prompt_length + sequence.max_tokens
        if needed > self._max_tokens:
            raise ValueError(f"prompt and max_tokens need {needed} of {self._max_tokens} tokens")
        if not 0 <= min(sequence.tokens) <= max(sequence.tokens) < self._vocab_size:
            raise ValueError(f"a prompt token is outside the vocabulary of {self._vocab_size}")

    def _abort(self, message: wire.Abort) -> None:
        for request_id in message.request_ids:
            sequence = self._scheduler.find(request_id)
            if sequence is not None:
                self._slots[_ABORTED] += 1
                self._finish(sequence, "abort")

    def _step(self) -> None:
        self._set_phase(Phase.SCHEDULE)
        started_ns = time.time_ns()
        chunks = self._scheduler.schedule()
        if not chunks:
            return
        for chunk in chunks:
            chunk.sequence.stamps[_SCHEDULED] = chunk.sequence.stamps[_SCHEDULED] or started_ns
        self._slots[_STEP_TOKENS] = sum(chunk.length for chunk in chunks)
        self._publish_gauges()
        self._set_phase(Phase.FORWARD)
        faults.stall("stall_core")
        try:
            sampled = self._runner.run(chunks)
        except RuntimeError as error:
            self._fail_step(chunks, error)
            return
        self._set_phase(Phase.UPDATE)
        self._update(chunks, sampled, started_ns)
        self._publish_gauges()

    def _update(self, chunks: Seq[Chunk], sampled: Sampled, started_ns: int) -> None:
        ended_ns = time.time_ns()
        members = [(chunk.sequence.trace_id, chunk.sequence.span_id) for chunk in chunks]
        for chunk in chunks:
            chunk.sequence.computed += chunk.length
            chunk.sequence.forward.add(ended_ns - started_ns)
        for chunk, token in zip(sampled.chunks, sampled.tokens, strict=True):
            self._append(chunk.sequence, token, ended_ns)
        request_ids = [chunk.sequence.request_id for chunk in sampled.chunks]
        self._queue_outputs(request_ids, sampled.tokens, sampled.logprobs)
        self._step_time.observe(ended_ns - started_ns)
        self._slots[_STEPS] += 1
        self._publish_longest(ended_ns - started_ns)
        if random.random() < self._step_trace_ratio:
            self._record_step(started_ns, ended_ns, members)

    def _append(self, sequence: Sequence, token: int, now_ns: int) -> None:
        sequence.tokens.append(token)
        sequence.stamps[_FIRST] = sequence.stamps[_FIRST] or now_ns
        sequence.stamps[_LAST] = now_ns
        if token in sequence.stop_token_ids:
            self._finish(sequence, "stop")
        elif sequence.generated >= sequence.max_tokens:
            self._finish(sequence, "length")

    def _finish(self, sequence: Sequence, reason: str) -> None:
        self._scheduler.finish(sequence)
        self._report(sequence, reason)

    def _report(self, sequence: Sequence, reason: str, error: str = "") -> None:
        forward = (sequence.forward.count, sequence.forward.busy_ns, sequence.forward.max_ns)
        cached = max(sequence.cached_tokens, 0)
        self._finished.append(wire.Finished(sequence.request_id, reason, sequence.stamps, forward, cached, error))

    def _fail_step(self, chunks: Seq[Chunk], error: RuntimeError) -> None:
        """A failed forward pass (out of memory, a device error) ends its requests, not the core."""
        _log.error("a step of %d requests failed: %s", len(chunks), error)
        for chunk in chunks:
            self._slots[_FAILED] += 1
            self._scheduler.fail(chunk.sequence)
            self._report(chunk.sequence, "error", "the forward pass failed")
        self._publish_finished()

    def _publish_finished(self) -> None:
        if self._finished:
            self._queue_outputs([], [])
            self._publish_gauges()

    def _queue_outputs(self, request_ids: Seq[int], tokens: Seq[int], logprobs: wire.Logprobs | None = None) -> None:
        columns = (wire.pack_ids(request_ids), wire.pack_tokens(tokens))
        message = wire.Outputs(self._core_index, *columns, self._finished, logprobs)
        self._finished = []
        self._output.put((message, time.time_ns()))
        self._slots[_QUEUED_OUT] += 1
        self._slots[_OUTPUT_DEPTH] = self._output.qsize()

    def _publish_longest(self, duration_ns: int) -> None:
        """The longest of the last 64 to 128 steps: what a watcher allows the next one, several times over."""
        if self._slots[_STEPS] % _LONGEST_WINDOW == 0:
            self._longest, self._longest_before = 0, self._longest
        self._longest = max(self._longest, duration_ns)
        self._slots[_LONGEST] = max(self._longest, self._longest_before)

    def _publish_gauges(self) -> None:
        waiting, running = self._scheduler.waiting, self._scheduler.running
        self._slots[_WAITING] = len(waiting)
        self._slots[_RUNNING] = len(running)
        # Both are in order of arrival, so that the first is the oldest.
        self._slots[_WAITING_OLDEST] = waiting[0].stamps[_QUEUED] if waiting else 0
        self._slots[_RUNNING_OLDEST] = running[0].stamps[_SCHEDULED] if running else 0
        self._slots[_BLOCKS_USED] = self._scheduler.pool.used
        self._slots[_PREFIX_QUERIED] = self._scheduler.queried_tokens
        self._slots[_PREFIX_HIT] = self._scheduler.hit_tokens
        self._slots[_PREEMPTIONS] = self._scheduler.preemptions

    def _record_step(self, started_ns: int, ended_ns: int, members: list[tuple[bytes, bytes]]) -> None:
        record = StepRecord(self._slots[_STEPS], started_ns, ended_ns, len(members), self._slots[_STEP_TOKENS], members)
        for payload in record.pack():
            self._ring.append(payload)

    def _set_phase(self, phase: Phase) -> None:
        self._slots[_PHASE_STARTED] = time.time_ns()
        self._slots[_PHASE] = phase


def _new_sequence(message: wire.Submit, queued_ns: int) -> Sequence:
    """Raises ValueError with one sentence when the prompt cannot be used."""
    prompt = wire.unpack_tokens(message.prompt)
    sampling = SamplingParams(message.temperature, message.top_p, message.top_k, message.seed)
    return Sequence(
        request_id=message.request_id,
        tokens=prompt,
        prompt_length=len(prompt),
        max_tokens=message.max_tokens,
        sampling=sampling,
        stop_token_ids=frozenset(message.stop_token_ids),
        stamps=[queued_ns, 0, 0, 0],
        trace_id=message.trace_id,
        span_id=message.span_id,
        generator=make_generator(sampling),
        logprobs=message.logprobs,
    )
