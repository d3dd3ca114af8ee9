"""Who is let in: the gate, the bounds that push back, and the adaptive limit.

A request is refused before its body is parsed, with 503 and ``Retry-After``, so that an engine that is behind does not
become slower for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from instrumented_engine.api.errors import OverloadError
from instrumented_engine.api.limiter import VegasLimiter
from instrumented_engine.config import EngineSettings
from telemetry.layout import API, GATE_DRAINING, GATE_OPEN, GATE_RELOADING
from telemetry.scoreboard import Writer

_GATE: Final = API.slot_index["gate"]
_RATE: Final = API.slot_index["limiter_rate_milli"]
_CLOSED: Final = {
    GATE_DRAINING: ("draining", "the engine is shutting down: ask another one"),
    GATE_RELOADING: ("reloading", "the engine is loading its model again"),
}
NO_CORE: Final = "the engine has no running core: it is starting, or it died and is being restarted"


@dataclass(frozen=True, slots=True)
class Load:
    """How far behind one core is."""

    waiting: int
    output_depth: int
    output_age: float


class Cores(Protocol):
    """What the admission asks of the client."""

    @property
    def loads(self) -> Sequence[Load]:
        """Of the cores that take requests."""


def behind(load: Load, settings: EngineSettings) -> OverloadError | None:
    """Which bound a core is over; None while it may have more."""
    if load.waiting >= settings.max_waiting_requests:
        return OverloadError("waiting", f"{load.waiting} requests are waiting already (--max-waiting-requests)")
    if load.output_depth >= settings.max_output_depth:
        return OverloadError(
            "output_depth", f"the engine is {load.output_depth} output messages behind (--max-output-depth)"
        )
    if load.output_age >= settings.max_output_age:
        return OverloadError(
            "output_age", f"the engine's outputs are {load.output_age:.1f} s behind (--max-output-age)"
        )
    return None


class Gate:
    """Whether new requests are taken; published on the page, where the launcher waits for it."""

    def __init__(self, page: Writer) -> None:
        self._slots = page.slots

    @property
    def state(self) -> int:
        """One of the ``GATE_`` values."""
        return self._slots[_GATE]

    def open(self) -> None:
        """Take requests again, unless the process is ending."""
        if self.state != GATE_DRAINING:
            self._slots[_GATE] = GATE_OPEN

    def reload(self) -> None:
        """Refuse requests until the new core is ready."""
        if self.state != GATE_DRAINING:
            self._slots[_GATE] = GATE_RELOADING

    def drain(self) -> None:
        """Refuse requests for good."""
        self._slots[_GATE] = GATE_DRAINING

    @property
    def refusal(self) -> OverloadError | None:
        """Why nobody is let in; None while it is open."""
        closed = _CLOSED.get(self.state)
        return OverloadError(*closed) if closed else None


class Admission:
    """Answers one question per request: may it come in."""

    def __init__(self, settings: EngineSettings, cores: Cores, gate: Gate, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._cores = cores
        self._gate = gate
        self.limiter = VegasLimiter(clock) if settings.adaptive_limit else None

    def refusal(self) -> OverloadError | None:
        """Why a new request is shed; None lets it in."""
        refused = self._gate.refusal
        if refused is not None:
            return refused
        return self._behind() or self._limited()

    def publish_rate(self, slots: memoryview) -> None:
        """Thousandths of a request per second that the limiter admits; 0 says that there is none."""
        slots[_RATE] = round(self.limiter.rate * 1000) if self.limiter else 0

    def _behind(self) -> OverloadError | None:
        """The bounds are per core: while one core is within them, it takes the request."""
        loads = self._cores.loads
        if not loads:
            return OverloadError("no_core", NO_CORE)
        best = min(loads, key=lambda load: (behind(load, self._settings) is not None, load.waiting))
        return behind(best, self._settings)

    def _limited(self) -> OverloadError | None:
        if self.limiter is None or self.limiter.allow():
            return None
        return OverloadError("rate", f"more than {self.limiter.rate:.0f} requests a second (--adaptive-limit)")
