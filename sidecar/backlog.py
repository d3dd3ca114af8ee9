"""Outputs on their way from the core to the API process: libzmq holds them where no kernel counter sees them."""

from __future__ import annotations

from typing import Final

from sidecar.pages import PageTracker

_ANOTHER_ZERO: Final = 5.0
"""Seconds in which more was received than sent and nothing moved. A core counts a message after it has sent it, and a
busy host can keep the thread from it for a while; a zero moved for that would leave a message outstanding for good."""


class OutputBacklog:
    """Output messages that the core sent and the API process has not received, and for how long none was received.

    Both counts start at 0 with their page. When one page is replaced, the difference at that moment is the new zero.
    """

    def __init__(self) -> None:
        self._pages: tuple[int, ...] = ()
        self._offset = 0
        self._last: tuple[int, int] = (0, 0)
        self._below_since: float | None = None
        self._waiting_since: float | None = None
        self.messages: int | None = None
        self.age: float | None = None

    def look(self, pages: PageTracker, now: float) -> None:
        """Take in what the pages count at this moment (monotonic seconds)."""
        apis, cores = list(pages.live("api")), list(pages.live("core"))
        if not apis or not cores:
            self.clear()
            return
        identity = tuple(page.header.created_ns for page in (*apis, *cores))
        received = sum(page.reader["output_messages_received"] for page in apis)
        sent = sum(page.reader["output_messages_sent"] for page in cores)
        self.observe(identity, received, sent, now)

    def observe(self, pages_: tuple[int, ...], received: int, sent: int, now: float) -> None:
        """Take in both counts; read ``received`` before ``sent``, so that a message in between is not negative.

        Args:
            pages_: identity of the pages behind the counts.
            received: the API's count of output messages.
            sent: the cores' count.
            now: monotonic seconds.
        """
        if self._pages not in ((), pages_):
            self._offset = received - sent
        difference = sent - received + self._offset
        if difference >= 0 or (received, sent) != self._last:
            self._below_since = now
        elif self._below_since is not None and now - self._below_since >= _ANOTHER_ZERO:
            self._offset -= difference
        self.messages = max(difference, 0)
        moved = received != self._last[0] or self._pages != pages_
        if not self.messages or moved or self._waiting_since is None:
            self._waiting_since = now
        self.age = now - self._waiting_since if self.messages else 0.0
        self._pages, self._last = pages_, (received, sent)

    def restart_clock(self) -> None:
        """Count the age anew: the sidecar itself did not run for a while."""
        self._waiting_since = None

    def clear(self) -> None:
        """One of the two processes has no page."""
        self.messages = self.age = self._waiting_since = None
