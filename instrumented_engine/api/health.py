"""Whether the engine makes progress: the rules behind ``/health``, on what the pages of both processes say.

Every rule is "there is work, and this progress token has not changed for so long", timed by the one who looks. An idle
engine is healthy however old its last step is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from telemetry.stages import Phase

STUCK_SECONDS: Final = 2.0
THREAD_SECONDS: Final = 0.3
STEP_MULTIPLE: Final = 5
PREFILL_SECONDS_PER_TOKEN: Final = 0.5e-3
"""Allowance before the first long prefill has shown how long a token takes here."""
OWN_GAP_SECONDS: Final = 0.6
"""A look that comes so much later than the one before was starved itself, and knows nothing about that time."""


@dataclass(frozen=True, slots=True)
class CoreFacts:
    """What was seen of one core at one moment. Counters begin at 0 with each core process."""

    phase: int
    phase_started_ns: int
    steps: int
    step_tokens: int
    step_longest_ns: int
    input_sent: int
    input_decoded: int
    input_taken: int
    output_queued: int
    output_sent: int
    output_received: int
    gone_threads: tuple[str, ...] = ()
    """Kinds of its IO threads that have ended."""

    @property
    def busy(self) -> bool:
        """Whether the core's main thread has something to do."""
        return self.phase > Phase.IDLE or self.input_decoded > self.input_taken

    @property
    def allowance(self) -> float:
        """Seconds that the main thread may take without a sign of progress."""
        tokens = self.step_tokens if self.phase == Phase.FORWARD else 0
        return max(
            STUCK_SECONDS,
            STEP_MULTIPLE * self.step_longest_ns * 1e-9,
            STEP_MULTIPLE * tokens * PREFILL_SECONDS_PER_TOKEN,
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    outstanding: Callable[[CoreFacts], int]
    token: Callable[[CoreFacts], object]
    allowance: Callable[[CoreFacts], float]
    sentence: str


def _two_seconds(_: CoreFacts) -> float:
    return STUCK_SECONDS


def _thread_rule(kind: str) -> _Rule:
    """Needs no work to be outstanding: the next request would be lost."""
    return _Rule(
        lambda facts: int(kind in facts.gone_threads),
        lambda _: kind,
        lambda _: THREAD_SECONDS,
        f"the core's {kind} thread has been gone for {{seconds:.1f}} s",
    )


_RULES: Final = (
    _thread_rule("input"),
    _thread_rule("output"),
    _Rule(
        lambda facts: int(facts.busy),
        lambda facts: (facts.steps, facts.phase, facts.phase_started_ns, facts.input_taken),
        lambda facts: facts.allowance,
        "the core's step loop has made no progress for {seconds:.1f} s (phase {phase})",
    ),
    _Rule(
        lambda facts: facts.input_sent - facts.input_decoded,
        lambda facts: facts.input_decoded,
        _two_seconds,
        "the core has not read its input socket for {seconds:.1f} s ({count} messages wait)",
    ),
    _Rule(
        lambda facts: facts.output_queued - facts.output_sent,
        lambda facts: facts.output_sent,
        _two_seconds,
        "the core has sent no output for {seconds:.1f} s ({count} messages wait in its output queue)",
    ),
    _Rule(
        lambda facts: facts.output_sent - facts.output_received,
        lambda facts: facts.output_received,
        _two_seconds,
        "the API process has received no output for {seconds:.1f} s ({count} messages wait)",
    ),
)


class ProgressWatch:
    """Remembers since when each rule's condition has held. One watch per core process."""

    def __init__(self) -> None:
        self._since: list[tuple[object, float] | None] = [None] * len(_RULES)
        self._looked_at: float | None = None

    def observe(self, facts: CoreFacts, now: float) -> list[str]:
        """Why the engine is stuck, one sentence each; empty when it is not, or when that is not known yet."""
        if self._looked_at is not None and now - self._looked_at > OWN_GAP_SECONDS:
            self._since = [None] * len(_RULES)
        self._looked_at = now
        return list(self._sentences(facts, now))

    def _sentences(self, facts: CoreFacts, now: float) -> Iterator[str]:
        for index, rule in enumerate(_RULES):
            seconds = self._held_for(index, rule, facts, now)
            if seconds >= rule.allowance(facts):
                yield rule.sentence.format(
                    seconds=seconds, count=rule.outstanding(facts), phase=_phase_name(facts.phase)
                )

    def _held_for(self, index: int, rule: _Rule, facts: CoreFacts, now: float) -> float:
        if rule.outstanding(facts) <= 0:
            self._since[index] = None
            return 0.0
        token, before = rule.token(facts), self._since[index]
        if before is None or before[0] != token:
            self._since[index] = (token, now)
            return 0.0
        return now - before[1]

    @property
    def output_age(self) -> float:
        """Seconds for which outputs have been waiting without any being received, as of the last look."""
        held = self._since[-1]  # of the last rule
        return self._looked_at - held[1] if held is not None and self._looked_at is not None else 0.0


def _phase_name(value: int) -> str:
    return Phase(value).name.lower() if value in Phase._value2member_map_ else str(value)
