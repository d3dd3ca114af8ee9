"""Sequences that begin alike share blocks; nothing else does, nothing leaks, and what is shared is right."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from instrumented_engine.core.blocks import BlockPool, Sequence
from instrumented_engine.core.scheduler import Scheduler
from tests.unit.engine.test_scheduler import BLOCK, BLOCKS, check_blocks, new_sequence


def new_scheduler(blocks: int = BLOCKS, *, prefix_cache: bool = True) -> Scheduler:
    return Scheduler(BlockPool(blocks, BLOCK, prefix_cache=prefix_cache), 4, 64)


def step(scheduler: Scheduler) -> None:
    for chunk in scheduler.schedule():
        chunk.sequence.computed += chunk.length
        if not chunk.sequence.uncomputed:
            chunk.sequence.tokens.append(1)


def finish_all(scheduler: Scheduler) -> None:
    for sequence in (*scheduler.running, *scheduler.waiting):
        scheduler.finish(sequence)


def admit(scheduler: Scheduler, number: int, prompt: list[int]) -> Sequence:
    """Add a sequence and schedule it."""
    sequence = new_sequence(number, prompt, 50)
    scheduler.add(sequence)
    step(scheduler)
    return sequence


def test_a_second_prompt_takes_over_the_full_blocks() -> None:
    scheduler = new_scheduler()
    first = admit(scheduler, 0, list(range(10)))
    second = admit(scheduler, 1, [*range(8), 99, 98, 97])
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    assert (scheduler.queried_tokens, scheduler.hit_tokens) == (21, 8)


def test_sequences_that_begin_together_share_in_the_same_step() -> None:
    scheduler = new_scheduler()
    sequences = [new_sequence(number, list(range(9)), 5) for number in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    step(scheduler)
    assert [sequence.cached_tokens for sequence in sequences] == [0, 8, 8]
    assert scheduler.pool.used == 2 + 3


def test_one_token_is_always_left_to_compute() -> None:
    scheduler = new_scheduler()
    admit(scheduler, 0, list(range(8)))
    again = admit(scheduler, 1, list(range(8)))
    assert again.cached_tokens == 4
    assert again.tokens[-1] == 1


def test_a_difference_before_a_block_makes_it_another_block() -> None:
    scheduler = new_scheduler()
    admit(scheduler, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert admit(scheduler, 1, [0, 2, 3, 4, 5, 6, 7, 8, 9]).cached_tokens == 0


def test_finished_content_is_found_until_it_is_needed() -> None:
    scheduler = new_scheduler(blocks=6)
    admit(scheduler, 0, list(range(9)))
    finish_all(scheduler)
    assert (scheduler.pool.used, scheduler.pool.cached) == (0, 2)
    admit(scheduler, 1, [50] * 17)  # five blocks: the empty ones go first, then the end of what was cached
    finish_all(scheduler)
    assert admit(scheduler, 2, list(range(9))).cached_tokens == 4


def test_the_unused_for_longest_goes_first() -> None:
    scheduler = new_scheduler(blocks=4)
    prompts = [[number] * 5 for number in range(3)]  # one full block each
    for number in (0, 1, 0):
        admit(scheduler, number, prompts[number])
        finish_all(scheduler)
    admit(scheduler, 2, [7] * 9)  # three blocks: two were empty, the third is that of prompt 1
    finish_all(scheduler)
    assert [admit(scheduler, n, prompts[n]).cached_tokens for n in (0, 1)] == [4, 0]


def test_a_failed_step_leaves_nothing_to_find() -> None:
    scheduler = new_scheduler()
    sequence = new_sequence(0, list(range(9)), 5)
    scheduler.add(sequence)
    scheduler.schedule()
    scheduler.fail(sequence)
    assert (scheduler.pool.used, scheduler.pool.cached) == (0, 0)
    assert admit(scheduler, 1, list(range(9))).cached_tokens == 0


def test_it_can_be_turned_off() -> None:
    scheduler = new_scheduler(prefix_cache=False)
    admit(scheduler, 0, list(range(9)))
    assert admit(scheduler, 1, list(range(9))).cached_tokens == 0
    finish_all(scheduler)
    assert (scheduler.pool.used, scheduler.pool.cached) == (0, 0)


def test_a_restart_after_preemption_is_no_hit() -> None:
    scheduler = new_scheduler(blocks=6)
    first = admit(scheduler, 0, [0] * 8)
    second = admit(scheduler, 1, [1] * 8)
    while not scheduler.preemptions:
        step(scheduler)
    scheduler.finish(first)
    step(scheduler)
    assert second.blocks
    assert second.computed > 8  # it found its own blocks again
    assert (second.cached_tokens, scheduler.hit_tokens) == (0, 0)


class PrefixCacheMachine(RuleBasedStateMachine):
    """Any order of arrivals, steps, ends and failures.

    ``written`` plays the cache: what the model would have put into each slot. A sequence may only read what it would
    have written itself: the token there, after the same tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(BlockPool(BLOCKS, BLOCK), 4, 10)
        self.number = 0
        self.written: dict[int, tuple[int, ...]] = {}

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=18), max_tokens=st.integers(1, 12))
    def arrive(self, prompt: list[int], max_tokens: int) -> None:
        self.number += 1
        self.scheduler.add(new_sequence(self.number, prompt, max_tokens))

    @rule(token=st.integers(0, 1))
    def run(self, token: int) -> None:
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            for position in range(chunk.start, chunk.start + chunk.length):
                self.written[int(chunk.sequence.slots[position])] = tuple(chunk.sequence.tokens[: position + 1])
        for chunk in chunks:
            self.check_reads(chunk.sequence, chunk.start + chunk.length)
            samples = chunk.samples
            chunk.sequence.computed += chunk.length
            if samples:
                chunk.sequence.tokens.append(token)
                if chunk.sequence.generated >= chunk.sequence.max_tokens:
                    self.scheduler.finish(chunk.sequence)

    def check_reads(self, sequence: Sequence, length: int) -> None:
        for position, slot in enumerate(sequence.slots[:length].tolist()):
            assert self.written[slot] == tuple(sequence.tokens[: position + 1])

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        self.scheduler.finish(data.draw(st.sampled_from([*self.scheduler.running, *self.scheduler.waiting])))

    @precondition(lambda self: self.scheduler.has_work)
    @rule()
    def fail(self) -> None:
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            for slot in chunk.sequence.slots[chunk.start : chunk.start + chunk.length].tolist():
                self.written[slot] = (-1,)
        for chunk in chunks:
            self.scheduler.fail(chunk.sequence)

    @invariant()
    def blocks_are_shared_only_when_alike(self) -> None:
        check_blocks(self.scheduler)

    def teardown(self) -> None:
        finish_all(self.scheduler)
        assert self.scheduler.pool.used == 0
        assert self.scheduler.pool.reserve(new_sequence(0, 1, 1), BLOCKS * BLOCK)


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
