"""Gathers what the judge may know of an engine without pages, from what the sampler has already seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sidecar.outside import OutsideFacts, PortWatch
from sidecar.probe import Probe
from sidecar.snapshot import ConnectionSample, ListenerSample, ProcessSample

_STOPPED: Final = "stopped"
Life = frozenset[tuple[int, int]]
"""Pid and start ticks of the processes that listen."""


class OutsideWatch:
    """Follows the port of an engine as long as it has no pages."""

    def __init__(self, port: int | None, probe: Probe | None = None) -> None:
        self._port = port
        self._probe = probe
        self._samples: Sequence[ProcessSample] = ()
        self._life: Life = frozenset()
        self._watch = PortWatch()
        self.process: str | None = None
        """Label that is judged; None for an engine with pages, and while there is no engine."""

    def note_processes(self, samples: Sequence[ProcessSample], listening: set[int], paged: bool) -> None:
        """Take in the engine's processes, once a second.

        Args:
            samples: the processes.
            listening: pids of those that hold the listener, as far as can be seen.
            paged: whether the engine has pages.
        """
        self._samples = () if paged else samples
        owners = self._owners(listening)
        life = frozenset((sample.pid, sample.start_ticks) for sample in owners)
        if life != self._life:
            self._life, self._watch = life, PortWatch()
        self.process = (owners or self._samples)[0].label if self._samples else None

    def note_scan(self, connections: Iterable[ConnectionSample], scan_seconds: float, now: float) -> None:
        """Take in a new scan of the connections; ``scan_seconds``: time from one look at what was sent to the next."""
        found = next((sample for sample in connections if sample.port == self._port), None)
        listening = {pid for pid, _ in self._life}
        cpu = [sample.cpu_seconds for sample in self._owners(listening)]
        self._watch.note_scan(found, scan_seconds, sum(cpu) if cpu else None, now)

    def _owners(self, listening: set[int]) -> list[ProcessSample]:
        return [sample for sample in self._samples if sample.pid in listening]

    def facts(self, listeners: Iterable[ListenerSample], now: float) -> OutsideFacts | None:
        """What is known now, ten times a second; None when the engine has pages or is not there."""
        if self.process is None:
            return None
        listener = next((sample for sample in listeners if sample.port == self._port and sample.sockets), None)
        if listener is not None:
            self._watch.note_depth(listener.depth, now)
        return OutsideFacts(
            process=self.process,
            port=self._watch.facts if listener is not None else None,
            frozen=self._frozen(),
            probe_failures=self._probe.failures if self._probe else None,
        )

    def _frozen(self) -> dict[str, frozenset[int]]:
        stopped = [sample for sample in self._samples if sample.state == _STOPPED]
        labels = {sample.label for sample in stopped}
        return {label: frozenset(one.pid for one in stopped if one.label == label) for label in sorted(labels)}

    @property
    def probe_up(self) -> bool | None:
        """Whether the last probe was answered; None without one, or before the first answer."""
        failures = self._probe.failures if self._probe else None
        return None if failures is None else not failures

    def restart_clocks(self) -> None:
        """Nobody looked for a while."""
        self._watch.restart_clocks()

    def start(self) -> None:
        """Begin to probe, where that was asked for."""
        if self._probe is not None:
            self._probe.start()

    def stop(self) -> None:
        """End that."""
        if self._probe is not None:
            self._probe.stop()
