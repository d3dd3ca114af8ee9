"""Notes how long each drill took, in ``alerts/drills.json``, from which the table of alerts is made."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from alerts.table import DRILLS, Drilled, last_drills
from enginescope.drills.result import DrillResult


def save(results: Sequence[DrillResult], time_scale: float, path: Path = DRILLS) -> Path:
    """Put the drills that went well beside what is noted already; the file."""
    noted = last_drills(path)
    for result in results:
        if result.skipped is None and result.ok:
            noted[result.name] = {
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "time_scale": time_scale,
                "seconds_to_evidence": result.seconds_to_evidence,
                "seconds_to_page": result.seconds_to_page,
                "seconds_to_resolved": result.seconds_to_resolved,
            }
    _write(noted, path)
    return path


def _write(noted: dict[str, Drilled], path: Path) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(dict(sorted(noted.items())), indent=2) + "\n")
    temporary.rename(path)
