"""A scheduler and a runner driven to the end without a core process: what is generated for each prompt."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from instrumented_engine.core.runner import ModelRunner
from instrumented_engine.core.scheduler import Scheduler
from tests.unit.engine.test_scheduler import new_sequence


def generate(
    runner: ModelRunner,
    scheduler: Scheduler,
    prompts: Seq[list[int]],
    new_tokens: int,
    stops: Collection[int] = (),
) -> list[list[int]]:
    """Tokens generated greedily, all prompts submitted at once; ``stops`` end an answer early."""
    sequences = [new_sequence(number, prompt, new_tokens) for number, prompt in enumerate(prompts)]
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.has_work:
        _step(runner, scheduler, new_tokens, stops)
    return [sequence.tokens[sequence.prompt_length :] for sequence in sequences]


def _step(runner: ModelRunner, scheduler: Scheduler, new_tokens: int, stops: Collection[int]) -> None:
    chunks = scheduler.schedule()
    sampled = runner.run(chunks)
    for chunk in chunks:
        chunk.sequence.computed += chunk.length
    for chunk, token in zip(sampled.chunks, sampled.tokens, strict=True):
        chunk.sequence.tokens.append(token)
        if token in stops or chunk.sequence.generated >= new_tokens:
            scheduler.finish(chunk.sequence)
