"""What the API process knows of one life of a core: its page, and how far each direction between them has come."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from instrumented_engine import wire
from instrumented_engine.api.health import CoreFacts, ProgressWatch
from instrumented_engine.api.io_threads import gone_threads
from telemetry.layout import API
from telemetry.scoreboard import Liveness, PageError, Reader, Writer

_log = logging.getLogger(__name__)
_SLOT: Final = API.slot_index
_SENT: Final = _SLOT["core_0_input_sent"]
_RECEIVED: Final = _SLOT["core_0_output_received"]


class CoreProcess:
    """One core process, from its ready message to its end. Lives on the event loop."""

    def __init__(self, ready: wire.Ready, page: Writer) -> None:
        """Open the core's page. One that cannot be read, such as on another host, leaves the core unwatched."""
        self.ready = ready
        self._slots = page.slots
        self._page = _open(ready.page)
        self._watch = ProgressWatch()
        self._sent, self._received = _SENT + ready.core_index, _RECEIVED + ready.core_index
        self._slots[self._sent] = 0
        self.problems: list[str] = []

    def count_sent(self) -> None:
        """A message was handed to the core's input socket."""
        self._slots[self._sent] += 1

    @property
    def alive(self) -> bool:
        """Whether the process holds its page's lock."""
        return self._page is None or self._page.owner() is not None

    @property
    def left_on_purpose(self) -> bool:
        """Whether the process said goodbye, as it does when it is told to stop."""
        return self._page is not None and self._page.liveness() is Liveness.EXITED

    @property
    def waiting(self) -> int:
        """Requests that no step has taken: in the core's queue, or still on their way there."""
        page = self._page
        if page is None:
            return 0
        return max(self._slots[self._sent] - page["input_messages_taken"], 0) + page["requests_waiting"]

    @property
    def output_depth(self) -> int:
        """Output messages that the core has sent and that were not received."""
        page = self._page
        return max(page["output_messages_sent"] - self._slots[self._received], 0) if page else 0

    @property
    def output_age(self) -> float:
        """Seconds for which they have been waiting without any being received, as of the last look."""
        return self._watch.output_age

    def look(self, now: float) -> None:
        """Judge the core's progress; ``problems`` has the result."""
        if self._page is not None:
            self.problems = self._watch.observe(self._facts(self._page), now)

    def _facts(self, page: Reader) -> CoreFacts:
        return CoreFacts(
            phase=page["phase"],
            phase_started_ns=page["phase_started_ns"],
            steps=page["steps"],
            step_tokens=page["step_tokens"],
            step_longest_ns=page["step_longest_ns"],
            input_sent=self._slots[self._sent],
            input_decoded=page["input_messages_decoded"],
            input_taken=page["input_messages_taken"],
            output_queued=page["output_messages_queued"],
            output_sent=page["output_messages_sent"],
            output_received=self._slots[self._received],
            gone_threads=gone_threads(page),
        )

    def close(self) -> None:
        """Let go of the page."""
        if self._page is not None:
            self._page.close()


def _open(path: str) -> Reader | None:
    try:
        return Reader(Path(path))
    except PageError as error:
        _log.warning("cannot watch the core: %s", error)
        return None
