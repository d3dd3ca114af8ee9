"""Drills: break a running stack on purpose, and measure until it shows, pages and resolves.

Each failure folder in ``alerts`` has a ``drill.py`` with a docstring that says what it breaks, and two functions:
``inject`` breaks it on entry and mends it on exit, whatever happens in between, and ``evidence`` says whether the
stack's own numbers show it. All times are counted from the stamp that ``inject`` takes immediately before it breaks
anything.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol, cast

import msgspec

from alerts.catalogue import alert_name, folders
from enginescope.pages import Page, format_page
from enginescope.probe import ProbeError, get, is_ready
from enginescope.stack import Stack

_POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 300.0
PAGE_SECONDS: Final = 120.0
"""Added to the dead-man's timeout, which decides when Watchdog pages."""
UNASKED_SECONDS: Final = 180.0
"""``all`` leaves out a drill that takes longer because its failure develops slowly."""
RESOLVED_SECONDS: Final = 300.0
"""Longer than any window plus ``keep_firing_for`` in the rules, those of drills with ``MINUTES`` apart."""
HEALTHY_SECONDS: Final = 180.0
"""A restarted engine loads its model first."""

Report = Callable[[str], None]


class DrillError(Exception):
    """The drill cannot be done or did not end as it must; the message is one sentence."""


class Drill(Protocol):
    """What ``alerts/<failure>/drill.py`` offers.

    ``WHOLE_STACK = True`` says that its page names no engine. ``MINUTES`` says how much longer than others the failure
    takes with the rules as shipped; faster rules shorten that.
    """

    __doc__: str | None

    def inject(self, stack: Stack) -> AbstractContextManager[int]:
        """Break it; the value is ``time.time_ns()`` immediately before. Mend it on exit."""

    def evidence(self, stack: Stack) -> bool:
        """Whether the sidecar's metrics, or what stands above a dead sidecar, show it now."""


class DrillResult(msgspec.Struct):
    """What came of a drill; seconds are None for what did not come."""

    name: str
    paged: bool = False
    seconds_to_evidence: float | None = None
    seconds_to_page: float | None = None
    seconds_to_resolved: float | None = None
    reason: str | None = None
    """Why the drill failed, in a sentence."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return msgspec.structs.asdict(self)


def drill_names() -> list[str]:
    """Every failure with a drill."""
    return [folder.name for folder in folders() if (folder / "drill.py").is_file()]


def run_drills(names: Sequence[str], stack: Stack, report: Report) -> list[DrillResult]:
    """Run drills one after the other; ``all`` stands for every one that is not slow.

    Raises:
        DrillError: there is no drill of that name.
    """
    known = drill_names()
    for name in names:
        if name != "all" and name not in known:
            raise DrillError(f"there is no drill {name!r}: choose all or one of {', '.join(known)}")
    chosen = [*_quick(known, names, stack, report)] if "all" in names else list(dict.fromkeys(names))
    with _end_on_sigterm():
        # Drills restart processes, so the marker is read again for each.
        return [run_drill(name, Stack.load(stack.runtime_dir), report) for name in chosen]


def _load(name: str) -> Drill:
    return cast("Drill", importlib.import_module(f"alerts.{name}.drill"))


def _quick(known: Sequence[str], named: Sequence[str], stack: Stack, report: Report) -> Iterator[str]:
    for name in known:
        slow = extra_seconds(_load(name), stack)
        if slow > UNASKED_SECONDS and name not in named:
            report(
                f"{name}: skipped: with these rules it takes up to {slow / 60:.0f} minutes longer; name it, or start "
                f"the stack with faster rules"
            )
        else:
            yield name


def extra_seconds(drill: Drill, stack: Stack) -> float:
    """How much longer than others this drill takes with the rules that the stack has."""
    minutes: float = getattr(drill, "MINUTES", 0)
    return minutes * 60 * stack.time_scale


def run_drill(name: str, stack: Stack, report: Report, drill: Drill | None = None) -> DrillResult:
    """Run one drill. A failure is in the result; only an interrupt is raised, after mending."""
    drill = drill or _load(name)
    run = _Run(name, stack, drill, report)
    try:
        run.wait_for_quiet()
        report(f"{name}: breaking it. {_first_sentence(drill)}")
        with drill.inject(stack) as stamp:
            page = run.wait_for_page(stamp)
        report(f"{name}: mended")
        run.wait_for_resolved(stamp, page)
    except (DrillError, ProbeError) as error:
        run.result.reason = str(error)
        report(f"{name}: failed: {error}")
    return run.result


class _Run:
    """One drill on one stack, and what was measured so far."""

    def __init__(self, name: str, stack: Stack, drill: Drill, report: Report) -> None:
        self.result = DrillResult(name)
        self._alert = alert_name(name)
        self._stack = stack
        self._drill = drill
        self._report = report
        self._last_id = 0
        self._extra = extra_seconds(drill, stack)

    def wait_for_quiet(self) -> None:
        """Wait until the alert is not firing and the failure not there."""
        told = False
        limit = QUIET_SECONDS + self._extra
        for _ in _until(limit):
            newest = {page.fingerprint: page for page in self._pages(since=0)}
            firing = [page for page in newest.values() if page.status == "firing"]
            if not firing and not self._shown():
                return
            if not told:
                self._report(f"{self.result.name}: waiting until {self._alert} has resolved")
                told = True
        raise DrillError(f"{self._alert} was firing or its cause was there already, {limit:.0f} s long")

    def wait_for_page(self, stamp: int) -> Page:
        """Wait for the evidence and for the page."""
        page: Page | None = None
        limit = PAGE_SECONDS + _deadman(self._stack)["timeout_seconds"] + self._extra
        for _ in _until(limit):
            if self.result.seconds_to_evidence is None and self._shown():
                self.result.seconds_to_evidence = _seconds(stamp, time.time_ns())
                self._report(f"{self.result.name}: evidence after {self.result.seconds_to_evidence:.2f} s")
            if page is None and (page := self._new_page("firing")):
                self.result.paged = True
                self.result.seconds_to_page = _seconds(stamp, page.received_ns)
                self._report(f"{self.result.name}: page after {self.result.seconds_to_page:.2f} s. {format_page(page)}")
            if page and self.result.seconds_to_evidence is not None:
                return page
        missing = "evidence in the metrics" if page else f"{self._alert} page for engine {self._stack.engine}"
        raise DrillError(f"no {missing} came within {limit:.0f} s")

    def wait_for_resolved(self, stamp: int, page: Page) -> None:
        """Wait for the end of that page."""
        limit = RESOLVED_SECONDS + self._extra
        for _ in _until(limit):
            if resolved := self._new_page("resolved", page.fingerprint):
                self.result.seconds_to_resolved = _seconds(stamp, resolved.received_ns)
                self._report(f"{self.result.name}: resolved after {self.result.seconds_to_resolved:.2f} s")
                return
        raise DrillError(f"{self._alert} had not resolved {limit:.0f} s after it was mended")

    def _shown(self) -> bool:
        try:
            return self._drill.evidence(self._stack)
        except ProbeError:
            return False

    def _new_page(self, status: str, fingerprint: str = "") -> Page | None:
        for page in self._pages(self._last_id):
            self._last_id = page.id
            if page.status == status and fingerprint in ("", page.fingerprint):
                return page
        return None

    def _pages(self, since: int) -> list[Page]:
        """The pages of this failure; also remembers how far they went."""
        raw = get(self._stack.ports["page_receiver"], f"/pages?since={since}")
        pages = msgspec.json.decode(raw, type=list[Page])
        if since == 0 and pages:
            self._last_id = pages[-1].id
        engine = None if getattr(self._drill, "WHOLE_STACK", False) else self._stack.engine
        return [page for page in pages if page.alert == self._alert and page.labels.get("engine") == engine]


def signal_group(stack: Stack, name: str, number: signal.Signals) -> None:
    """Signal one process of the stack with all its children.

    Raises:
        DrillError: it is not running as the leader of its process group.
    """
    pid = stack.pids.get(name, 0)
    try:
        if pid <= 1 or os.getpgid(pid) != pid:
            raise DrillError(f"the stack has no process group for {name} (pid {pid})")
        os.killpg(pid, number)
    except ProcessLookupError:
        raise DrillError(f"{name} (pid {pid}) is not running: is the stack still up?") from None


def wait_healthy(stack: Stack) -> None:
    """Wait until the engine answers /health with 200.

    Raises:
        DrillError: it does not.
    """
    for _ in _until(HEALTHY_SECONDS):
        if is_ready(stack.ports["engine"], "/health"):
            return
    raise DrillError(f"the engine did not answer /health with 200 within {HEALTHY_SECONDS:.0f} s after it was mended")


def deadman_age(stack: Stack) -> tuple[float, float]:
    """Seconds since the page receiver heard a Watchdog, and how many it allows."""
    state = _deadman(stack)
    return state["age_seconds"], state["timeout_seconds"]


def _deadman(stack: Stack) -> dict[str, Any]:
    health: dict[str, Any] = msgspec.json.decode(get(stack.ports["page_receiver"], "/healthz"))
    state: dict[str, Any] = health["deadman"]
    return state


def _until(seconds: float) -> Iterator[None]:
    """Turns of a polling loop, until the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_SECONDS)


def _seconds(stamp: int, moment: int) -> float:
    return round((moment - stamp) / 1e9, 3)


def _first_sentence(drill: Drill) -> str:
    return (drill.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
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
