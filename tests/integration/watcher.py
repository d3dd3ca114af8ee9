"""A sidecar's sampler beside an engine of a test: every fault it finds, and its metrics as numbers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from sidecar.judge import OWN_GAP_SECONDS
from sidecar.metrics import families
from sidecar.probe import Probe
from sidecar.sampler import Sampler
from sidecar.snapshot import FaultSample
from sidecar.target import parse_engine
from tests.conftest import eventually

Found = set[tuple[str, str]]
_POLL_SECONDS = 0.03


class Watcher:
    """A sampler on a thread of its own, and every fault it has found so far."""

    def __init__(
        self,
        port: int,
        runtime_dir: Path,
        pages: int = 2,
        probe: Probe | None = None,
        keep_alive: float | None = None,
    ) -> None:
        self.sampler = Sampler(parse_engine(f"chat=port:{port}"), runtime_dir, probe=probe, keep_alive=keep_alive)
        self.sampler._gaps = deque()  # of all the time, not of the last minute
        self._pages = pages
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self.sampler.run, args=(self._stop,)),
            threading.Thread(target=self._note_faults),
        ]
        self._started = time.monotonic()
        self.found: list[tuple[float, FaultSample]] = []
        """Seconds since the start and the fault, once for each that came, not for as long as it held."""

    def _note_faults(self) -> None:
        before: Found = set()
        while not self._stop.wait(_POLL_SECONDS):
            faults = self.sampler.faults
            after = time.monotonic() - self._started
            self.found += [(after, fault) for fault in faults if (fault.fault, fault.process) not in before]
            before = {(fault.fault, fault.process) for fault in faults}

    def blind_seconds(self, after_each: float = 0.0) -> float:
        """How long this observer itself did not run, and ``after_each`` more for the timers that each stall resets."""
        return sum(gap + after_each for gap in list(self.sampler._gaps) if gap > OWN_GAP_SECONDS)

    def now(self) -> Found:
        return {(fault.fault, fault.process) for fault in self.sampler.faults}

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series of the last snapshot; None where it is absent."""
        assert self.sampler.latest is not None
        for family in families(self.sampler.latest, "test"):
            for sample in family.samples:
                if sample.name == f"enginescope_{name}" and sample.labels == labels:
                    return float(sample.value)
        return None

    def wait_for(self, what: Callable[[], bool], why: str, seconds: float = 60) -> None:
        """Until the metrics say so."""
        eventually(f"{why} in the metrics", what, seconds)

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        eventually("the first snapshot", lambda: self.sampler.latest)
        eventually("all pages", lambda: self.sampler.latest and len(self.sampler.latest.pages) >= self._pages)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
