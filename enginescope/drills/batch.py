"""Runs many drills on one stack: what fits, one after the other, without waiting longer than they disturb each other.

An alert resolves long after its cause is gone, because rules keep firing. The next drill begins meanwhile, unless one
of the two alerts would hold the other back, or the whole stack stands still.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from alerts.catalogue import folders
from alerts.inhibition import holds_back
from enginescope.drill import DrillError, Report
from enginescope.drills.needs import lacking
from enginescope.drills.result import DrillResult
from enginescope.drills.run import Run, extra_seconds, is_whole_stack, load, may_also_page
from enginescope.stack import Stack

UNASKED_SECONDS: Final = 180.0
"""``all`` leaves out a drill that takes longer because its failure develops slowly."""


def drill_names() -> list[str]:
    """Every failure with a drill."""
    return [folder.name for folder in folders() if (folder / "drill.py").is_file()]


def in_order(names: Sequence[str]) -> list[str]:
    """Slow failures first: what compares with the past must not wait until that has forgotten the other drills."""
    return sorted(names, key=lambda name: (-getattr(load(name), "MINUTES", 0), name))


def run_drills(names: Sequence[str], stack: Stack, report: Report) -> list[DrillResult]:
    """Run drills; ``all`` stands for every one that is not slow. What does not fit the stack is skipped by name.

    Raises:
        DrillError: there is no drill of that name.
    """
    known = drill_names()
    for name in names:
        if name != "all" and name not in known:
            raise DrillError(f"there is no drill {name!r}: choose all or one of {', '.join(known)}")
    chosen = known if "all" in names else list(dict.fromkeys(names))
    skipped = unfit(chosen, names, stack)
    for name, why in skipped.items():
        report(f"{name}: skipped: {why}")
    with end_on_sigterm():
        fit = in_order([name for name in chosen if name not in skipped])
        ran = {result.name: result for result in _run(fit, stack, report)}
    return [ran.get(name) or DrillResult(name, skipped=skipped[name]) for name in chosen]


def unfit(chosen: Sequence[str], named: Sequence[str], stack: Stack) -> dict[str, str]:
    """Which drills are skipped, and why: what the stack lacks, or that they are slow and nobody ``named`` them."""
    return {name: why for name in chosen if (why := _why_skipped(name, named, stack))}


def _why_skipped(name: str, named: Sequence[str], stack: Stack) -> str | None:
    drill = load(name)
    if why := lacking(drill, stack):
        return why
    slow = extra_seconds(drill, stack)
    if slow > UNASKED_SECONDS and name not in named:
        return (
            f"with these rules it takes up to {slow / 60:.0f} minutes longer; name it, or start the stack with faster "
            f"rules"
        )
    return None


def _run(names: Sequence[str], stack: Stack, report: Report) -> list[DrillResult]:
    runs: list[Run] = []
    open_runs: list[Run] = []
    for name in names:
        # Drills restart processes, so the marker is read again for each.
        run = Run(name, Stack.load(stack.runtime_dir), report)
        for earlier in [earlier for earlier in open_runs if disturb(earlier, run)]:
            earlier.settle()
            open_runs.remove(earlier)
        run.prepare()
        if runs:
            runs[-1].judge_others(run.first_id)
        # What the last drill causes besides may wait out its own `for` after that drill's page has resolved.
        run.excused = {alert for earlier in (*open_runs, *runs[-1:]) for alert in may_also_page(earlier.drill)}
        run.break_it()
        runs.append(run)
        open_runs.append(run)
    for run in open_runs:
        run.settle()
    if runs:
        runs[-1].judge_others()
    return [run.result for run in runs]


def disturb(one: Run, other: Run) -> bool:
    """Whether one cannot be broken while the other's page has yet to resolve.

    A resolved alert that is held back at that moment is never reported as resolved.
    """
    return (
        is_whole_stack(one.drill)
        or is_whole_stack(other.drill)
        or holds_back(one.alert, other.alert)
        or holds_back(other.alert, one.alert)
    )


@contextmanager
def end_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack like Ctrl-C, so that what is broken gets mended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
