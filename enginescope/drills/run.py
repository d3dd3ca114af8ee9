"""One drill: break a running stack on purpose, and measure until it shows, pages and resolves.

All times are counted from the stamp that ``inject`` takes immediately before it breaks anything.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from typing import Final, cast

from alerts.catalogue import Alert, alerts
from enginescope.drill import Drill, DrillError, Report, deadman, new_pages, until
from enginescope.drills.result import DrillResult
from enginescope.pages import Page, format_page
from enginescope.probe import ProbeError
from enginescope.stack import Stack

QUIET_SECONDS: Final = 300.0
PAGE_SECONDS: Final = 120.0
"""Added to the dead-man's timeout, which decides when Watchdog pages."""
RESOLVED_SECONDS: Final = 300.0
"""Longer than any window plus ``keep_firing_for`` in the rules, those of drills with ``MINUTES`` apart."""


def load(name: str) -> Drill:
    """The drill of a failure."""
    return cast("Drill", importlib.import_module(f"alerts.{name}.drill"))


@cache
def catalogue() -> dict[str, Alert]:
    """Every failure with its alert."""
    return {alert.name: alert for alert in alerts()}


def extra_seconds(drill: Drill, stack: Stack) -> float:
    """How much longer than others this drill takes with the rules that the stack has."""
    minutes: float = getattr(drill, "MINUTES", 0)
    return minutes * 60 * stack.time_scale


def is_whole_stack(drill: Drill) -> bool:
    """Whether its page names no engine, and nothing else is watched meanwhile."""
    return bool(getattr(drill, "WHOLE_STACK", False))


def may_also_page(drill: Drill) -> Mapping[str, str]:
    """Alerts that the failure causes besides its own, with the reason."""
    return cast("Mapping[str, str]", getattr(drill, "MAY_ALSO_PAGE", {}))


def run_drill(name: str, stack: Stack, report: Report, drill: Drill | None = None) -> DrillResult:
    """Run one drill. A failure is in the result; only an interrupt is raised, after mending."""
    run = Run(name, stack, report, drill)
    run.prepare()
    run.break_it()
    run.settle()
    run.judge_others()
    return run.result


class Run:
    """One drill on one stack, and what was measured so far.

    ``prepare``, ``break_it``, ``settle`` and ``judge_others`` follow each other, with those of other drills in between
    when the two do not disturb each other. After a failure the rest does nothing, except judging.
    """

    def __init__(self, name: str, stack: Stack, report: Report, drill: Drill | None = None) -> None:
        self.result = DrillResult(name)
        self.alert = catalogue()[name]
        self.drill = drill or load(name)
        self.excused: set[str] = set()
        """Alerts that earlier drills may still cause."""
        self.first_id = 0
        """Pages up to this one came before anything was broken."""
        self._stack = stack
        self._report = report
        self._last_id = 0
        self._extra = extra_seconds(self.drill, stack)
        self._stamp = 0
        self._page: Page | None = None

    def prepare(self) -> None:
        """Wait until the alert is not firing and the failure not there."""
        self._attempt(self._wait_for_quiet)
        self.first_id = self._last_id

    def break_it(self) -> None:
        """Break it, wait for the evidence and the page, mend it."""
        self._attempt(self._break)

    def settle(self) -> None:
        """Wait until the page resolves."""
        self._attempt(self._wait_for_resolved)

    def judge_others(self, last_id: float = inf) -> None:
        """Fail when another alert paged, up to the page with that id, that had no business to."""
        try:
            pages = new_pages(self._stack, self.first_id)
        except ProbeError as error:
            self._fail(str(error))
            return
        allowed = {self.alert.alert, *may_also_page(self.drill), *self.excused}
        for page in pages:
            if page.id <= last_id and page.status == "firing" and self._is_ours(page) and page.alert not in allowed:
                self.result.wrong_pages = [*self.result.wrong_pages, page.alert]
                self._fail(f"{page.alert} paged too")
                self._say(format_page(page))

    def _attempt(self, step: Callable[[], None]) -> None:
        if not self.result.ok:
            return
        try:
            step()
        except (DrillError, ProbeError) as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        self.result.fail(reason)
        self._say(f"failed: {reason}")

    def _say(self, text: str) -> None:
        self._report(f"{self.result.name}: {text}")

    def _break(self) -> None:
        self._say(f"breaking it. {_first_sentence(self.drill)}")
        with self.drill.inject(self._stack) as self._stamp:
            self._page = self._wait_for_page()
        self._say("mended")
        self._check(self._page)

    def _wait_for_quiet(self) -> None:
        told = False
        limit = QUIET_SECONDS + self._extra
        for _ in until(limit):
            newest = {page.fingerprint: page for page in self._pages(since=0)}
            firing = [page for page in newest.values() if page.status == "firing"]
            if not firing and not self._shown():
                return
            if not told:
                self._say(f"waiting until {self.alert.alert} has resolved")
                told = True
        raise DrillError(f"{self.alert.alert} was firing or its cause was there already, {limit:.0f} s long")

    def _wait_for_page(self) -> Page:
        page: Page | None = None
        limit = PAGE_SECONDS + deadman(self._stack)["timeout_seconds"] + self._extra
        for _ in until(limit):
            if self.result.seconds_to_evidence is None and self._shown():
                self.result.seconds_to_evidence = self._since_stamp(time.time_ns())
                self._say(f"evidence after {self.result.seconds_to_evidence:.2f} s")
            if page is None and (page := self._new_page("firing")):
                self.result.paged = True
                self.result.seconds_to_page = self._since_stamp(page.received_ns)
                self._say(f"page after {self.result.seconds_to_page:.2f} s. {format_page(page)}")
            if page and self.result.seconds_to_evidence is not None:
                return page
        missing = "evidence in the metrics" if page else f"{self.alert.alert} page for engine {self._stack.engine}"
        raise DrillError(f"no {missing} came within {limit:.0f} s")

    def _check(self, page: Page) -> None:
        """The page must say what the rule promises: how bad it is, and where to read on."""
        # The receiver raises Watchdog itself, since an alert with severity "none" that stays away is the alarm.
        severity = "critical" if self.alert.severity == "none" else self.alert.severity
        if page.severity != severity:
            raise DrillError(f"the page has severity {page.severity!r}, the rule {severity!r}")
        if f"/{self.alert.name}/" not in page.annotations.get("runbook_url", ""):
            raise DrillError("the page does not link to the runbook")

    def _wait_for_resolved(self) -> None:
        assert self._page is not None
        limit = RESOLVED_SECONDS + self._extra
        for _ in until(limit):
            if resolved := self._new_page("resolved", self._page.fingerprint):
                self.result.seconds_to_resolved = self._since_stamp(resolved.received_ns)
                self._say(f"resolved after {self.result.seconds_to_resolved:.2f} s")
                return
        raise DrillError(f"{self.alert.alert} had not resolved {limit:.0f} s after it was mended")

    def _since_stamp(self, moment: int) -> float:
        return round((moment - self._stamp) / 1e9, 3)

    def _shown(self) -> bool:
        try:
            return self.drill.evidence(self._stack)
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
        pages = new_pages(self._stack, since)
        if since == 0 and pages:
            self._last_id = pages[-1].id
        engine = None if is_whole_stack(self.drill) else self._stack.engine
        return [page for page in pages if page.alert == self.alert.alert and page.labels.get("engine") == engine]

    def _is_ours(self, page: Page) -> bool:
        return page.labels.get("engine", self._stack.engine) == self._stack.engine


def _first_sentence(drill: Drill) -> str:
    return (drill.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
