"""``enginescope drill``: drills and decoys on a stack, a table of what came of them, and JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from enginescope.drill import DrillError, Report
from enginescope.drills import report, saved
from enginescope.drills.batch import drill_names, end_on_sigterm, run_drills
from enginescope.drills.decoys import decoy_names, run_decoys
from enginescope.drills.own_stack import own_stack
from enginescope.isolation import enter
from enginescope.stack import Stack
from telemetry.scoreboard import runtime_directory

_LOG_WIDTH: Final = 120


@dataclass(frozen=True)
class Wanted:
    """What was asked on the command line."""

    names: Sequence[str]
    """Failures and decoys, or ``all`` for every drill."""
    decoys: bool = False
    """Whether every decoy runs too."""
    own_stack: bool = False
    """Whether to start a stack for it, with rules at ``time_scale``."""
    time_scale: float = 0.05
    save: bool = False
    """Whether to note the times for the table of alerts."""


def drill(wanted: Wanted, console: Console) -> tuple[dict[str, Any], int]:
    """Run what is wanted; what to tell as JSON, and the exit status: 1 when one failed or none ran.

    Raises:
        DrillError: a name that nobody knows, or the stack does not start.
        StackError: there is no stack.
        IsolationError: its network namespace cannot be entered.
    """
    failures, chosen_decoys = _sort_out(wanted)
    if not console.is_terminal:
        console.width = max(console.width, _LOG_WIDTH)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    told: dict[str, Any] = {}
    status = 0
    with end_on_sigterm():
        if failures:
            with _stack(wanted, say) as stack:
                told, status = _drill(failures, stack, console, say, save=wanted.save)
        if chosen_decoys is not None:
            # With --up on another stack: what drills restarted is still in the windows of the rules.
            try:
                with _stack(wanted, say) as stack:
                    decoys, failed = _decoys(chosen_decoys, stack, console, say)
            except DrillError as error:
                if not failures:
                    raise
                say(f"no decoy ran: {error}")  # which takes nothing from what the drills found
                decoys, failed = {"decoys": [], "reason": str(error)}, 1
            told, status = {**told, **decoys}, max(status, failed)
    return told, status


def _sort_out(wanted: Wanted) -> tuple[list[str], list[str] | None]:
    """The names of failures, and those of decoys: None for none, empty for all."""
    drills, decoys = ["all", *drill_names()], decoy_names()
    for name in wanted.names:
        if name not in drills and name not in decoys:
            raise DrillError(f"there is no drill {name!r}: choose {', '.join(drills)} or a decoy: {', '.join(decoys)}")
    if not wanted.names and not wanted.decoys:
        raise DrillError("nothing to do: name a failure, or say all, or --decoys")
    failures = [name for name in wanted.names if name in drills]
    named = [name for name in wanted.names if name in decoys]
    return failures, [] if wanted.decoys else named or None


@contextmanager
def _stack(wanted: Wanted, say: Report) -> Iterator[Stack]:
    own = own_stack(wanted.time_scale, say) if wanted.own_stack else nullcontext(Stack.load(runtime_directory()))
    with own as stack:
        if "prometheus" not in stack.pids:
            raise DrillError(
                "nothing can page: the stack runs without Prometheus and Alertmanager; run `make install`, or install "
                "Debian's packages prometheus and prometheus-alertmanager"
            )
        enter(stack)
        yield stack


def _drill(
    names: Sequence[str], stack: Stack, console: Console, say: Report, *, save: bool
) -> tuple[dict[str, Any], int]:
    begin = time.monotonic()
    results = run_drills(names, stack, say)
    counts = report.summary(results, time.monotonic() - begin)
    console.print(report.table(results, counts))
    if save:
        say(f"noted in {saved.save(results, stack.time_scale)}")
    told = {"drills": [result.as_dict() for result in results], "summary": counts}
    return told, 0 if counts["drilled"] and not counts["failed"] else 1


def _decoys(names: Sequence[str], stack: Stack, console: Console, say: Report) -> tuple[dict[str, Any], int]:
    results = run_decoys(names, stack, say)
    console.print(report.decoy_table(results))
    pages = sum(len(result.pages) for result in results)
    told = {"decoy_pages": pages, "decoys": [result.as_dict() for result in results]}
    ran = [result for result in results if result.skipped is None]
    return told, 0 if ran and all(result.reason is None for result in ran) else 1


def as_line(told: dict[str, Any]) -> str:
    """What to tell as JSON, on one line."""
    return json.dumps(told)
