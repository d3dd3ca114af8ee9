"""What came of one drill."""

from __future__ import annotations

from typing import Any

import msgspec


class DrillResult(msgspec.Struct):
    """What came of a drill; seconds are None for what did not come."""

    name: str
    paged: bool = False
    seconds_to_evidence: float | None = None
    seconds_to_page: float | None = None
    seconds_to_resolved: float | None = None
    wrong_pages: list[str] = []
    """Alerts that had no business to page meanwhile."""
    reason: str | None = None
    """Why the drill failed, in a sentence."""
    skipped: str | None = None
    """What was lacking; then nothing else is told."""

    @property
    def ok(self) -> bool:
        """Whether it ended as it must; a drill that was skipped did not fail."""
        return self.reason is None

    @property
    def seconds_from_evidence_to_page(self) -> float | None:
        """What the alerting adds to the seeing."""
        if self.seconds_to_page is None or self.seconds_to_evidence is None:
            return None
        return round(self.seconds_to_page - self.seconds_to_evidence, 3)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        if self.skipped is not None:
            return {"name": self.name, "skipped": self.skipped}
        told = msgspec.structs.asdict(self)
        del told["skipped"]
        return {**told, "seconds_from_evidence_to_page": self.seconds_from_evidence_to_page}

    def fail(self, reason: str) -> None:
        """Note one more reason."""
        self.reason = reason if self.reason is None else f"{self.reason}; {reason}"
