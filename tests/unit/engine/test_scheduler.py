from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine.core.blocks import BlockPool, Sequence
from instrumented_engine.core.scheduler import Chunk, Scheduler
from instrumented_engine.model.sampling import SamplingParams

BLOCK = 4
BLOCKS = 12


def new_sequence(number: int, prompt: int | list[int], max_tokens: int) -> Sequence:
    tokens = [number] * prompt if isinstance(prompt, int) else list(prompt)
    return Sequence(
        request_id=number,
        tokens=tokens,
        prompt_length=len(tokens),
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0),
        stop_token_ids=frozenset(),
        stamps=[0] * 4,
        trace_id=bytes(16),
        span_id=bytes(8),
    )


def new_scheduler(max_num_seqs: int = 4, max_num_batched_tokens: int = 16) -> Scheduler:
    return Scheduler(BlockPool(BLOCKS, BLOCK), max_num_seqs, max_num_batched_tokens)


def check_blocks(scheduler: Scheduler) -> None:
    """A block of two sequences is full in both, and both hold the same tokens up to its end."""
    owners: dict[int, list[tuple[Sequence, int]]] = {}
    for sequence in (*scheduler.running, *scheduler.waiting):
        assert len(set(sequence.blocks)) == len(sequence.blocks)
        for position, block in enumerate(sequence.blocks):
            owners.setdefault(block, []).append((sequence, (position + 1) * BLOCK))
    assert len(owners) == scheduler.pool.used
    assert all(0 <= block < BLOCKS for block in owners)
    for shared in (found for found in owners.values() if len(found) > 1):
        assert len({tuple(sequence.tokens[:end]) for sequence, end in shared}) == 1
        assert all(len(sequence.tokens) >= end for sequence, end in shared)
    for sequence in scheduler.running:
        slots = sequence.slots.tolist()
        assert [slot // BLOCK for slot in slots[::BLOCK]] == sequence.blocks
        assert len(set(slots)) == len(slots) >= sequence.computed


def run_step(scheduler: Scheduler, max_tokens: int) -> list[Chunk]:
    """Schedule, and do what the loop does with a model that always samples token 1."""
    chunks = scheduler.schedule()
    assert sum(chunk.length for chunk in chunks) <= max_tokens
    assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        assert chunk.start == chunk.sequence.computed
        assert len(chunk.sequence.slots) >= chunk.start + chunk.length
        samples = chunk.samples
        chunk.sequence.computed += chunk.length
        if samples:
            chunk.sequence.tokens.append(1)
            if chunk.sequence.generated >= chunk.sequence.max_tokens:
                scheduler.finish(chunk.sequence)
    return chunks


requests = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 18)), min_size=1, max_size=12)


@given(requests, st.integers(1, 6), st.integers(6, 40))
def test_every_request_ends_and_no_block_leaks(
    wanted: list[tuple[int, int]], max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    scheduler = new_scheduler(max_num_seqs, max_num_batched_tokens)
    sequences = [new_sequence(i, prompt, max_tokens) for i, (prompt, max_tokens) in enumerate(wanted)]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(5000):
        if not scheduler.has_work:
            break
        assert run_step(scheduler, max_num_batched_tokens), "work, but nothing scheduled"
        assert len(scheduler.running) <= max_num_seqs
        check_blocks(scheduler)
    assert not scheduler.has_work
    assert [sequence.generated for sequence in sequences] == [max_tokens for _, max_tokens in wanted]
    assert scheduler.pool.used == 0


def test_a_long_prompt_is_computed_in_chunks_beside_a_decode() -> None:
    scheduler = new_scheduler(max_num_batched_tokens=8)
    scheduler.add(new_sequence(0, 2, 10))
    run_step(scheduler, 8)
    scheduler.add(new_sequence(1, 20, 1))
    lengths = [[chunk.length for chunk in run_step(scheduler, 8)] for _ in range(3)]
    assert lengths == [[1, 7], [1, 7], [1, 6]]


def test_without_room_the_newest_gives_way_and_starts_again_first() -> None:
    scheduler = new_scheduler(max_num_batched_tokens=64)
    for number in range(3):
        scheduler.add(new_sequence(number, 15, 20))
    while not scheduler.preemptions:
        run_step(scheduler, 64)
    victim = scheduler.waiting[0]
    assert victim.request_id == 2
    assert (victim.computed, victim.blocks) == (0, [])


def test_abort_frees_at_once_wherever_the_sequence_is() -> None:
    scheduler = new_scheduler(max_num_seqs=1)
    running, waiting = new_sequence(0, 8, 5), new_sequence(1, 8, 5)
    scheduler.add(running)
    scheduler.add(waiting)
    run_step(scheduler, 16)
    for sequence in (running, waiting):
        assert scheduler.find(sequence.request_id) is sequence
        scheduler.finish(sequence)
        assert scheduler.find(sequence.request_id) is None
    assert scheduler.pool.used == 0
