"""Which fault an engine has, on what evidence: pure rules over one observation, and one timer for all of them.

Every rule says "this is wrong unless this progress token moves within so long". The judge times that itself, so that
an idle engine, whose heartbeats are old for a good reason, is never faulted. Facts that are missing make a rule
silent: fewer facts never give a firmer judgement. When the observer itself did not run for a while, every timer starts
anew, because what it did not see proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.input_backlog import input_gap
from sidecar.outside import OutsideFacts
from telemetry.layout import core_index
from telemetry.stages import Phase

OWN_GAP_SECONDS: Final = 0.6
"""A longer gap between two observations says that the observer was starved."""

_FROZEN_SECONDS: Final = 0.25
_THREAD_SECONDS: Final = 0.3
_LOOP_SECONDS: Final = 2.0
_STUCK_SECONDS: Final = 2.0
_WAIT_SECONDS: Final = 5.0
_STEP_FACTOR: Final = 5
_PREFILL_NS_PER_TOKEN: Final = 500_000
"""Prior for a token's share of a long prefill; without it the first long prompt would be called a stall."""

STOPPED_STATES: Final = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What is known about one process of the engine at one instant."""

    role: str
    """Role of its page: ``api``, ``core``, …"""
    name: str
    """Instance, such as ``core-0``; the ``process`` label."""
    liveness: str
    """``alive``, ``exited``, ``dead`` or ``unknown``, as its page says."""
    identity: int
    """Tells one life of the process from the next."""
    state: str | None = None
    """Scheduler state letter of /proc/PID/stat; None when it is not visible."""
    threads: frozenset[int] | None = None
    """Native ids of its threads, those that its page names at least; None when numbered by another pid namespace."""
    values: Mapping[str, int] = field(default_factory=dict)
    """Slots of its page; empty when there is none."""
    step_p99_ns: int = 0
    """Upper bound of 99 % of its steps so far."""

    @property
    def frozen(self) -> bool:
        """Whether a signal or a tracer stopped it."""
        return self.state is not None and self.state in STOPPED_STATES

    @property
    def running(self) -> bool:
        """Whether it is known to live and to be free to run, so that a lack of progress is its own."""
        return self.liveness == "alive" and self.state is not None and not self.frozen


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the engine."""

    monotonic: float
    processes: tuple[ProcessFacts, ...] = ()
    """Those with a page."""
    outside: OutsideFacts | None = None
    """What is known of an engine that has no pages."""

    def of_role(self, role: str) -> Iterator[ProcessFacts]:
        """The processes with a page of that role."""
        return (process for process in self.processes if process.role == role)


Evidence = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Something is wrong if the token does not move for ``need`` seconds."""

    fault: str
    process: str
    token: Hashable
    need: float
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A fault that is there now."""

    fault: str
    process: str
    since: float
    """Monotonic time at which the condition began, as this observer saw it."""
    evidence: Evidence = field(default_factory=dict)


Rule = Callable[[Observation], Iterator[Suspicion]]


def process_frozen(seen: Observation) -> Iterator[Suspicion]:
    """Stopped by a signal, a tracer or a freezer."""
    for process in seen.processes:
        if process.liveness == "alive" and process.frozen:
            yield Suspicion("process_frozen", process.name, process.identity, _FROZEN_SECONDS)


def process_dead(seen: Observation) -> Iterator[Suspicion]:
    """Its lock is free, its pid is gone, and it did not say goodbye."""
    for process in seen.processes:
        if process.liveness == "dead":
            yield Suspicion("process_dead", process.name, process.identity, 0.0)


def event_loop_blocked(seen: Observation) -> Iterator[Suspicion]:
    """The API's event loop ticks every 100 ms, busy or idle."""
    for api in seen.of_role("api"):
        tick = api.values.get("loop_tick_ns", 0)
        if api.running and tick:
            yield Suspicion("event_loop_blocked", api.name, (api.identity, tick), _LOOP_SECONDS)


def thread_dead(seen: Observation) -> Iterator[Suspicion]:
    """A thread that the page names is not among the process's threads."""
    for fault, role, slot in (
        ("input_thread_stuck", "core", "input_thread_id"),
        ("output_thread_stuck", "core", "output_thread_id"),
        ("output_thread_stuck", "api", "receiver_thread_id"),
    ):
        for process in seen.of_role(role):
            thread = process.values.get(slot, 0)
            if process.running and process.threads is not None and thread and thread not in process.threads:
                yield Suspicion(fault, process.name, (process.identity, thread), _THREAD_SECONDS, {"thread_alive": 0})


def step_stalled(seen: Observation) -> Iterator[Suspicion]:
    """Work, and neither a step nor a change of phase. A long prefill gets time in proportion to its tokens."""
    for core in seen.of_role("core"):
        values = core.values
        queued = max(values.get("input_messages_decoded", 0) - values.get("input_messages_taken", 0), 0)
        work = values.get("requests_running", 0) + values.get("requests_waiting", 0) + queued
        if not core.running or not work or values.get("phase", Phase.STARTING) == Phase.STARTING:
            continue
        prefill_ns = values.get("step_tokens", 0) * _PREFILL_NS_PER_TOKEN if values["phase"] == Phase.FORWARD else 0
        need = max(_STUCK_SECONDS, _STEP_FACTOR * core.step_p99_ns / 1e9, _STEP_FACTOR * prefill_ns / 1e9)
        token = (core.identity, values.get("steps"), values.get("phase"), values.get("phase_started_ns"))
        yield Suspicion("step_stalled", core.name, token, need, {"outstanding": work})


def input_thread_stuck(seen: Observation) -> Iterator[Suspicion]:
    """The API handed over more messages than the core has decoded, and the core decodes none."""
    for core in seen.of_role("core"):
        gap = _input_gap(seen, core)
        if core.running and gap > 0:
            token = (core.identity, core.values.get("input_messages_decoded"))
            yield Suspicion("input_thread_stuck", core.name, token, _STUCK_SECONDS, {"undecoded": gap})


def output_queue_stuck(seen: Observation) -> Iterator[Suspicion]:
    """The core has outputs to send and sends none, though all that it sent has been received.

    While something is still on its way the pipe may be full, which is not the core's doing: ZMQ lets the sender go on
    only after the receiver has taken half a high-water mark.
    """
    api = _only(seen.of_role("api"))
    for core in seen.of_role("core"):
        queued, sent = core.values.get("output_messages_queued"), core.values.get("output_messages_sent")
        received = api.values.get(f"core_{core_index(core.name)}_output_received") if api else None
        if not core.running or queued is None or sent is None or received is None:
            continue
        if queued > sent and received >= sent:
            token = (core.identity, sent)
            yield Suspicion("output_thread_stuck", core.name, token, _STUCK_SECONDS, {"queued": queued - sent})


def output_not_received(seen: Observation) -> Iterator[Suspicion]:
    """The core has sent more than the API process has received, and it receives none.

    What a core that is stopped or dead has sent may not have left it: ZMQ sends on a thread of its own.
    """
    api = _only(seen.of_role("api"))
    if api is None or not api.running:
        return
    for core in seen.of_role("core"):
        sent = core.values.get("output_messages_sent")
        received = api.values.get(f"core_{core_index(core.name)}_output_received")
        if core.running and sent is not None and received is not None and sent > received:
            token = (api.identity, core.identity, received)
            yield Suspicion("output_thread_stuck", api.name, token, _STUCK_SECONDS, {"unreceived": sent - received})


def api_waits(seen: Observation) -> Iterator[Suspicion]:
    """Requests are in flight, nothing comes back, and there is no core page that could say why."""
    if any(seen.of_role("core")):
        return
    for api in seen.of_role("api"):
        inflight = api.values.get("requests_inflight", 0)
        if api.running and inflight:
            token = (api.identity, api.values.get("output_messages_received"))
            yield Suspicion("api_waits", api.name, token, _WAIT_SECONDS, {"requests_inflight": inflight})


def _input_gap(seen: Observation, core: ProcessFacts) -> int:
    """0 when it cannot be told: what an API process that is stopped has handed over may not have left it."""
    api = _only(seen.of_role("api"))
    return (input_gap(api.values, core.name, core.values) or 0) if api and not api.frozen else 0


def _only(processes: Iterator[ProcessFacts]) -> ProcessFacts | None:
    found = list(processes)
    return found[0] if len(found) == 1 else None


RULES: Final[tuple[Rule, ...]] = (
    process_frozen,
    process_dead,
    thread_dead,
    event_loop_blocked,
    step_stalled,
    input_thread_stuck,
    output_queue_stuck,
    output_not_received,
    api_waits,
)
FAULTS: Final = (
    "process_frozen",
    "process_dead",
    "event_loop_blocked",
    "step_stalled",
    "input_thread_stuck",
    "output_thread_stuck",
    "api_waits",
    "engine_unresponsive",
)


class Judge:
    """Times suspicions and says which of them hold."""

    def __init__(self, rules: Iterable[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._timers: dict[tuple[str, str, str], tuple[Hashable, float]] = {}
        self._last: float | None = None

    def observe(self, seen: Observation) -> tuple[Judgement, ...]:
        """Take in one observation; the faults that hold now, each once per process, the oldest evidence first."""
        if self._last is not None and seen.monotonic - self._last > OWN_GAP_SECONDS:
            self._timers.clear()
        self._last = seen.monotonic
        timers: dict[tuple[str, str, str], tuple[Hashable, float]] = {}
        found: dict[tuple[str, str], Judgement] = {}
        for rule in self._rules:
            for suspicion in rule(seen):
                key = (rule.__name__, suspicion.fault, suspicion.process)
                since = self._since(key, suspicion.token, seen.monotonic)
                timers[key] = (suspicion.token, since)
                if seen.monotonic - since >= suspicion.need:
                    judgement = Judgement(suspicion.fault, suspicion.process, since, suspicion.evidence)
                    found.setdefault((suspicion.fault, suspicion.process), judgement)
        self._timers = timers
        return tuple(found.values())

    def _since(self, key: tuple[str, str, str], token: Hashable, now: float) -> float:
        before = self._timers.get(key)
        return before[1] if before is not None and before[0] == token else now
