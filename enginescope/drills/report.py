"""What came of many drills: a table for people, numbers for programs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.table import Table

from enginescope.drills.decoys import DecoyResult
from enginescope.drills.result import DrillResult


def summary(results: Sequence[DrillResult], seconds: float) -> dict[str, Any]:
    """Counts, and the median time from the first evidence to the page; ``seconds`` is how long all of it took."""
    delays = [delay for result in results if (delay := result.seconds_from_evidence_to_page) is not None]
    return {
        "drilled": sum(result.skipped is None for result in results),
        "paged": sum(result.paged for result in results),
        "failed": sum(not result.ok for result in results),
        "skipped": sum(result.skipped is not None for result in results),
        "wrong_pages": sum(len(result.wrong_pages) for result in results),
        "median_seconds_from_evidence_to_page": round(median(delays), 3) if delays else None,
        "seconds": round(seconds, 1),
    }


def table(results: Sequence[DrillResult], counts: dict[str, Any]) -> Table:
    """One row for each drill; times in seconds from the moment of breaking."""
    shown = Table(title="Drills: seconds from the moment something was broken", title_justify="left")
    shown.add_column("failure", no_wrap=True)
    for heading in ("evidence", "page", "evidence to page", "resolved"):
        shown.add_column(heading, justify="right")
    shown.add_column("outcome")
    for result in results:
        numbers = (
            result.seconds_to_evidence,
            result.seconds_to_page,
            result.seconds_from_evidence_to_page,
            result.seconds_to_resolved,
        )
        shown.add_row(result.name, *map(_number, numbers), _outcome(result))
    shown.caption = _caption(counts)
    shown.caption_justify = "left"
    return shown


def decoy_table(results: Sequence[DecoyResult]) -> Table:
    """One row for each decoy."""
    shown = Table(title="Decoys: healthy or odd, and nobody may be paged", title_justify="left")
    shown.add_column("decoy", no_wrap=True)
    shown.add_column("seconds", justify="right")
    shown.add_column("proof that it happened")
    shown.add_column("outcome")
    for result in results:
        seconds = _number(None if result.skipped else result.seconds)
        shown.add_row(result.name, seconds, result.proof or "", _decoy_outcome(result))
    return shown


def _decoy_outcome(result: DecoyResult) -> str:
    if result.skipped is not None:
        return f"skipped: {result.skipped}"
    return "silent" if result.reason is None else f"FAILED: {result.reason}"


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def _outcome(result: DrillResult) -> str:
    if result.skipped is not None:
        return f"skipped: {result.skipped}"
    return "paged" if result.reason is None else f"FAILED: {result.reason}"


def _caption(counts: dict[str, Any]) -> str:
    delay = counts["median_seconds_from_evidence_to_page"]
    told = f"{counts['paged']} of {counts['drilled']} paged, {counts['failed']} failed, {counts['skipped']} skipped"
    return f"{told}; median from evidence to page {_number(delay) or '?'} s; {counts['seconds']:.0f} s in all"
