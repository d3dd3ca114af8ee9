"""What can be told of an engine without pages: who waits at its port, and what it has been seen to do about that.

A connection alone does not tell a hang from a long poll: both have a request in and nothing out. So what a port does
for anybody is counted, and what patience it has needed before is remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.snapshot import ConnectionSample, TcpDetail

_SAME_OUTPUT_SECONDS: Final = 0.25
"""Two moments of a last output that are closer than this may be one: the clock is read before the dump."""
_CPU_WINDOW_SECONDS: Final = 5.0
_HELD_STATES: Final = ("established", "close_wait")


@dataclass(frozen=True, slots=True)
class PortFacts:
    """The engine's port at one instant."""

    unaccepted: int
    """Connections that wait for accept()."""
    unread: int
    """Accepted connections with bytes that the process has not read for five seconds."""
    unanswered: int
    """Accepted connections with a request in and not one byte out, ever, or cut off in the middle of an answer."""
    acts: int
    """Counts up whenever the process has accepted a connection or sent something."""
    outputs: int
    """Counts up whenever it has sent something."""
    longest_pause: float = 0.0
    """Seconds: the longest time without an act, while somebody waited, that ended with one."""
    longest_silence: float = 0.0
    """Seconds: the longest time without an output, while a request was unanswered, that ended with one."""
    scan_seconds: float = 1.0
    """Time between two looks at what was sent."""
    cpu_ratio: float | None = None
    """Cores that the listening process used in the last seconds; None when not known."""


@dataclass(frozen=True, slots=True)
class OutsideFacts:
    """An engine without pages at one instant."""

    process: str
    """Label of the process that listens, or of the first one."""
    port: PortFacts | None = None
    """None where the port, or what was sent on it, cannot be seen."""
    frozen: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Label -> pids of its processes that a signal or a tracer has stopped, for the labels that have some."""
    probe_failures: int | None = None
    """Probes in a row that nobody answered; None without a probe, or before its first answer."""


class _Pause:
    """How long something has not happened while it was waited for, and the longest such time that ended well."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.longest = 0.0

    def observe(self, waiting: bool, happened: bool, now: float) -> None:
        if happened and self._since is not None:
            self.longest = max(self.longest, now - self._since)
        if not waiting or happened:
            self._since = None
        if waiting and self._since is None:
            self._since = now

    def restart(self) -> None:
        self._since = None


class PortWatch:
    """Follows one port of one life of the engine. ``facts`` is what is known now."""

    def __init__(self) -> None:
        self._acts = self._outputs = 0
        self._depth = 0
        self._held: int | None = None
        self._time_wait: int | None = None
        self._told: TcpDetail | None = None
        self._output_at: float | None = None
        self._pause, self._silence = _Pause(), _Pause()
        self._cpu: deque[tuple[float, float]] = deque()
        self._sample: ConnectionSample | None = None
        self._scan_seconds = 1.0

    def note_depth(self, depth: int, now: float) -> None:
        """Take in how many connections wait for accept(): only the process makes that fewer."""
        accepted = depth < self._depth
        self._acts += accepted
        self._depth = depth
        self._pause.observe(self._waiting, accepted, now)

    def note_scan(
        self, sample: ConnectionSample | None, scan_seconds: float, cpu_seconds: float | None, now: float
    ) -> None:
        """Take in one scan of the port's connections, and the CPU time of the listening process so far."""
        self._sample, self._scan_seconds = sample, scan_seconds
        self._note_cpu(cpu_seconds, now)
        if sample is None:
            return
        held = sum(sample.states.get(state, 0) for state in _HELD_STATES) - sample.unaccepted
        answered = self._sent_something(sample, now)
        accepted = self._held is not None and held > self._held
        self._held = held
        self._outputs += answered
        self._acts += answered or accepted
        self._pause.observe(self._waiting, answered or accepted, now)
        self._silence.observe(self._unanswered > 0, answered, now)

    def _sent_something(self, sample: ConnectionSample, now: float) -> bool:
        """Whether a connection has sent since the last time, or the process has closed one first (TIME_WAIT)."""
        closed, before_it = sample.states.get("time_wait", 0), self._time_wait
        finished, self._time_wait = before_it is not None and closed > before_it, closed
        detail = self._detail
        if detail is None or detail is self._told or detail.silent is None:
            return finished
        moment, before = now - detail.silent, self._output_at
        self._told = detail
        if before is not None and moment <= before + _SAME_OUTPUT_SECONDS:
            return finished
        self._output_at = moment
        return finished or before is not None  # what was sent before this watch began is no act that it has seen

    def _note_cpu(self, cpu_seconds: float | None, now: float) -> None:
        if cpu_seconds is None:
            self._cpu.clear()
            return
        self._cpu.append((now, cpu_seconds))
        while len(self._cpu) > 2 and now - self._cpu[1][0] >= _CPU_WINDOW_SECONDS:
            self._cpu.popleft()

    @property
    def _detail(self) -> TcpDetail | None:
        end = self._sample.ends.get("accepted") if self._sample else None
        return end.detail if end else None

    @property
    def _unread(self) -> int:
        end = self._sample.ends.get("accepted") if self._sample else None
        return end.receive_stuck if end else 0

    @property
    def _unanswered(self) -> int:
        return _unanswered(self._detail) if self._detail else 0

    @property
    def _waiting(self) -> bool:
        return self._depth > 0 or self._unread > 0

    def restart_clocks(self) -> None:
        """Nobody looked for a while."""
        self._pause.restart()
        self._silence.restart()

    @property
    def facts(self) -> PortFacts | None:
        """None while it is not seen what the port's connections sent."""
        detail = self._detail
        if detail is None or detail.never_answered is None:
            return None
        return PortFacts(
            unaccepted=self._depth,
            unread=self._unread,
            unanswered=_unanswered(detail),
            acts=self._acts,
            outputs=self._outputs,
            longest_pause=self._pause.longest,
            longest_silence=self._silence.longest,
            scan_seconds=self._scan_seconds,
            cpu_ratio=self._cpu_ratio,
        )

    @property
    def _cpu_ratio(self) -> float | None:
        if len(self._cpu) < 2:
            return None
        (began, first), (ended, last) = self._cpu[0], self._cpu[-1]
        return (last - first) / (ended - began) if ended > began else None


def _unanswered(detail: TcpDetail) -> int:
    """An engine closes an idle connection: one that stays open for longer, with nothing moving, is in an answer."""
    return (detail.never_answered or 0) + (detail.overdue or 0)
