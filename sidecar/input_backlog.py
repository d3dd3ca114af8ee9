"""Messages on their way from the API process to the cores, and for how long a core has taken none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sidecar.snapshot import PageSample
from telemetry.layout import API, CORE, core_index
from telemetry.stages import Phase


def input_gap(api: Mapping[str, int], core_name: str, core: Mapping[str, int]) -> int | None:
    """Messages handed to a core and not decoded, from the slots of both pages; None when that cannot be told.

    Until a core that starts is ready, the API's count is still the one of the core before it. What the core rejected is
    left out of account: it came from somebody else.
    """
    sent, decoded = api.get(f"core_{core_index(core_name)}_input_sent"), core.get("input_messages_decoded")
    if sent is None or decoded is None or core.get("phase", Phase.STARTING) == Phase.STARTING:
        return None
    return max(sent - decoded, 0)


class InputBacklog:
    """Input messages that the API process sent and a core has not decoded, and for how long that core decoded none.

    Both are unknown without exactly one API process, whose counters belong to the newest cores.
    """

    def __init__(self) -> None:
        self._decoded: dict[tuple[str, int], tuple[int, float]] = {}
        """Core -> its last count, and since when it has been that while something was on its way."""
        self.messages: int | None = None
        self.age: float | None = None

    def observe(self, pages: Sequence[PageSample], now: float) -> None:
        """Take in all pages, as they are at this moment (monotonic seconds)."""
        live = [page for page in pages if page.may_live]
        apis = [page for page in live if page.role == API.role]
        cores = [page for page in live if page.role == CORE.role] if len(apis) == 1 else []
        gaps = [(core, gap) for core in cores if (gap := input_gap(apis[0].values, core.name, core.values)) is not None]
        before, self._decoded = self._decoded, {}
        for core, gap in gaps:
            key, decoded = (core.name, core.created_ns), core.values["input_messages_decoded"]
            last, since = before.get(key, (decoded, now))
            self._decoded[key] = decoded, since if gap and decoded == last else now
        self.messages = sum(gap for _, gap in gaps) if gaps else None
        self.age = max((now - since for _, since in self._decoded.values()), default=None)

    def restart_clock(self) -> None:
        """Count the age anew: the sidecar itself did not run for a while."""
        self._decoded = {}
