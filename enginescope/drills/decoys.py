"""Runs decoys: what is healthy or merely odd, for long enough, with proof that it happened, and without a page."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, cast

import msgspec

from alerts.build import scale, seconds
from enginescope import decoys
from enginescope.drill import DrillError, Report, new_pages, until
from enginescope.drills.batch import UNASKED_SECONDS, end_on_sigterm
from enginescope.drills.needs import lacking
from enginescope.pages import Page, format_page
from enginescope.probe import ProbeError
from enginescope.stack import Stack

QUIET_SECONDS: Final = 300.0
PROOF_SECONDS: Final = 60.0
"""Added when there is no proof yet, for a machine that is slow."""
LATE_SECONDS: Final = 3.0
"""A page that is on its way still counts: one scrape, one evaluation, one notification."""
_TIMES: Final = 2
_SHORTEST_SECONDS: Final = 7.0
"""What scaled rules keep of a window, four seconds, and of a ``for``, three."""


class Decoy(Protocol):
    """What a module in ``enginescope.decoys`` offers."""

    __doc__: str | None
    COULD_PAGE: tuple[str, ...]
    SPAN: str

    def happening(self, stack: Stack) -> AbstractContextManager[Callable[[], str | None]]:
        """Make it so for the length of a block; the function says in words what proves it, None while nothing does."""


class DecoyResult(msgspec.Struct):
    """What came of a decoy."""

    name: str
    seconds: float = 0.0
    """For how long it went on."""
    proof: str | None = None
    """Which metric showed that it happened."""
    pages: list[str] = []
    """Alerts that paged: there must be none."""
    reason: str | None = None
    """Why the decoy failed, in a sentence."""
    skipped: str | None = None
    """What was lacking; then nothing else is told."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        if self.skipped is not None:
            return {"name": self.name, "skipped": self.skipped}
        told = msgspec.structs.asdict(self)
        del told["skipped"]
        return told


def decoy_names() -> list[str]:
    """Every decoy."""
    return sorted(
        module.name for module in pkgutil.iter_modules(decoys.__path__) if hasattr(load(module.name), "COULD_PAGE")
    )


def load(name: str) -> Decoy:
    """A decoy's module."""
    return cast("Decoy", importlib.import_module(f"enginescope.decoys.{name}"))


def length(decoy: Decoy, stack: Stack) -> float:
    """For how many seconds it goes on: twice the window and wait of the rules it could fool."""
    return _TIMES * seconds(scale(decoy.SPAN, stack.time_scale, _SHORTEST_SECONDS))


def run_decoys(names: Sequence[str], stack: Stack, report: Report) -> list[DecoyResult]:
    """Run decoys one after the other; those that do not fit the stack, or take longer than a drill may, are skipped.

    Raises:
        DrillError: there is no decoy of that name.
    """
    known = decoy_names()
    if unknown := [name for name in names if name not in known]:
        raise DrillError(f"there is no decoy {unknown[0]!r}: choose among {', '.join(known)}")
    with end_on_sigterm():
        # Decoys restart processes too, so the marker is read again for each.
        return [_run_decoy(name, Stack.load(stack.runtime_dir), report) for name in names or known]


def _run_decoy(name: str, stack: Stack, report: Report) -> DecoyResult:
    decoy, result = load(name), DecoyResult(name)
    if why := lacking(decoy, stack) or _too_long(decoy, stack):
        result.skipped = why
        report(f"{name}: skipped: {why}")
        return result
    try:
        first = _wait_for_quiet(stack)
        report(f"{name}: {(decoy.__doc__ or '').strip()}")
        _watch(decoy, stack, result)
        time.sleep(LATE_SECONDS)
        _judge(new_pages(stack, first), stack, result)
    except (DrillError, ProbeError) as error:
        result.reason = str(error)
    report(
        f"{name}: {f'failed: {result.reason}' if result.reason else f'silent for {result.seconds} s; {result.proof}'}"
    )
    return result


def _too_long(decoy: Decoy, stack: Stack) -> str | None:
    needed = length(decoy, stack)
    return f"with these rules it takes {needed / 60:.0f} minutes" if needed > UNASKED_SECONDS else None


def _wait_for_quiet(stack: Stack) -> int:
    """Wait until nothing fires; the newest page's id."""
    firing: list[str] = []
    for _ in until(QUIET_SECONDS):
        pages = new_pages(stack, 0)
        newest = {page.fingerprint: page for page in pages}
        firing = [page.alert for page in newest.values() if page.status == "firing" and _is_about(page, stack)]
        if not firing:
            return pages[-1].id if pages else 0
    raise DrillError(f"{' and '.join(firing)} did not resolve before it, within {QUIET_SECONDS:.0f} s")


def _watch(decoy: Decoy, stack: Stack, result: DecoyResult) -> None:
    begin, needed = time.monotonic(), length(decoy, stack)
    with decoy.happening(stack) as proof:
        for _ in until(needed + PROOF_SECONDS):
            result.proof = _attempt(proof) or result.proof
            result.seconds = round(time.monotonic() - begin, 1)
            if result.proof and result.seconds >= needed:
                return
    raise DrillError(f"no metric shows that it happened, within {result.seconds:.0f} s")


def _attempt(proof: Callable[[], str | None]) -> str | None:
    try:
        return proof()
    except ProbeError:
        return None


def _judge(pages: Sequence[Page], stack: Stack, result: DecoyResult) -> None:
    wrong = [page for page in pages if page.status == "firing" and _is_about(page, stack)]
    result.pages = [page.alert for page in wrong]
    if wrong:
        result.reason = f"{' and '.join(result.pages)} paged: {format_page(wrong[0])}"


def _is_about(page: Page, stack: Stack) -> bool:
    return page.labels.get("engine", stack.engine) == stack.engine
