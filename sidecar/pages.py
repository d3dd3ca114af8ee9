"""The engine's scoreboard pages: found, followed over generations, summed, and drained of exemplars."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from sidecar.collectors import Visibility, log
from sidecar.snapshot import Exemplar, HistogramSample, PageSample
from sidecar.totals import RunningVector
from telemetry.layout import API, BYTE_BOUNDS, BYTE_HISTOGRAMS, CORE, EXPORTER, LAYOUTS, SIDECAR, Layout
from telemetry.records import RingReader, unpack_stamps
from telemetry.scoreboard import Liveness, PageError, Reader, pages
from telemetry.stages import STAGES, Stamp

_NANOSECONDS: Final = 1e-9
_GONE: Final = (Liveness.DEAD, Liveness.EXITED)
_LAYOUT_ORDER: Final = (API, CORE, EXPORTER)
_TIMED: Final = (
    ("request", Stamp.HTTP_STARTED, Stamp.HTTP_ENDED),
    ("time_to_first_token", Stamp.HTTP_STARTED, Stamp.OUTPUT_FIRST_RECEIVED),
    *((stage.name, stage.start, stage.end) for stage in STAGES),
)
"""The API page's histograms of requests: which stamps of a record each of them is the time between."""


class Page:
    """One page file, open."""

    def __init__(self, path: Path) -> None:
        """Map it.

        Raises:
            PageError: it cannot be read.
        """
        self.path = path
        self.file = file_number(path)
        self.reader = Reader(path)
        self.header = self.reader.header
        self.layout = self.reader.layout
        self.owner, self.liveness = self.reader.look()
        self.ring: RingReader | None = self.reader.ring() if self.layout is API else None
        self.lost_before = 0
        """Records overwritten before this sidecar first looked, which are nobody's loss."""
        self.first_drain = True

    def refresh(self) -> None:
        """Ask the kernel whether the owner still lives."""
        self.owner, self.liveness = self.reader.look()

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells this page from any other."""
        return self.header.name, self.header.pid, self.header.created_ns

    @property
    def pid(self) -> int | None:
        """The owner in this pid namespace; None when it is gone, 0 when it is not visible here."""
        if self.owner is None and self.liveness is Liveness.ALIVE:
            return self.header.pid
        return self.owner

    def numbers(self) -> list[int]:
        """Every slot, then every histogram's counts and sum."""
        values = list(self.reader.values().values())
        for name in self.layout.histograms:
            counts, total = self.reader.histogram(name)
            values += [*counts, total]
        return values

    def sample(self) -> PageSample:
        """The slots as they are now."""
        header = self.header
        return PageSample(
            role=header.role,
            name=header.name,
            pid=self.pid,
            liveness=self.liveness.value,
            generation=header.generation,
            created_ns=header.created_ns,
            values=self.reader.values(),
        )


class PageTracker:
    """The newest page of every process instance, and totals over all pages seen."""

    def __init__(self, directory: Path, visibility: Visibility) -> None:
        self._directory = directory
        self._visibility = visibility
        self._skipped: set[Path] = set()
        self._elsewhere: set[Path] = set()
        self._totals = {layout.role: RunningVector(_number_count(layout)) for layout in _LAYOUT_ORDER}
        self._exemplars: dict[str, dict[int, Exemplar]] = {name: {} for name, _, _ in _TIMED}
        self.pages: dict[Path, Page] = {}
        self.errors = 0
        self.lost = 0

    def follow(self, paths: Iterable[Path]) -> None:
        """Take in pages outside of the runtime directory as long as they are there, unless they are known by inode."""
        known = {page.file for page in self.pages.values()}
        self._elsewhere.update(path for path in paths if file_number(path) not in known)

    def scan(self) -> None:
        """Open new pages, ask which owners live, and let go of pages that a newer one of the same name replaces."""
        here = list(pages(self._directory))
        # A page that is in the directory by now is one page, by whichever path it was found first.
        known = {0, *map(file_number, here)}
        self._elsewhere = {path for path in self._elsewhere if file_number(path) not in known}
        present = [*here, *self._elsewhere]
        self._skipped &= set(present)
        if self._directory.is_dir() and not os.access(self._directory, os.R_OK | os.X_OK):
            self._hide(f"cannot list the runtime directory {self._directory}")
        for path in present:
            # Pids repeat in a restarted container, and then so does the name of the page.
            if path in self.pages and self.pages[path].file != file_number(path):
                self._close(path)
                self._skipped.discard(path)
            if path not in self.pages and path not in self._skipped:
                self._open(path)
        newest: dict[str, Page] = {}
        for page in self.pages.values():
            page.refresh()
            newest[page.header.name] = max(
                newest.get(page.header.name, page), page, key=lambda found: found.header.created_ns
            )
        for path, page in list(self.pages.items()):
            replaced = page is not newest[page.header.name] or path not in present
            if replaced and page.liveness is not Liveness.ALIVE:
                self._close(path)

    def _open(self, path: Path) -> None:
        # Closing any descriptor of a page drops its owner's lock when the owner is this process, so the sidecar's
        # own page is recognized by name before it is opened.
        if path.name.startswith(f"{SIDECAR.role}-"):
            self._skipped.add(path)
            return
        try:
            page = Page(path)
        except PageError as error:
            self._refuse(path, error)
            return
        self.pages[path] = page
        self._visibility.show("pages")

    def _refuse(self, path: Path, error: PageError) -> None:
        if isinstance(error.__cause__, FileNotFoundError):
            return
        self.errors += 1
        self._skipped.add(path)
        if isinstance(error.__cause__, PermissionError):
            self._hide(str(error))
        else:
            log.error("%s", error)

    def _hide(self, what: str) -> None:
        self._visibility.hide("pages", f"{what}: run the sidecar as the engine's user or in its group")

    def _close(self, path: Path) -> None:
        page = self.pages.pop(path)
        self._add(page)
        self._totals[page.header.role].forget(page.key)
        page.reader.close()
        self._skipped.add(path)

    def _add(self, page: Page) -> None:
        self._totals[page.header.role].update(page.key, page.numbers())
        if page.ring is not None:
            self._drain(page, page.ring)

    def collect(self) -> None:
        """Add what every page counted since the last call, and take exemplars from new records."""
        for page in self.pages.values():
            self._add(page)

    def _drain(self, page: Page, ring: RingReader) -> None:
        before = ring.lost
        self._take_exemplars(ring.drain())
        if not page.first_drain:
            self.lost += ring.lost - before
        page.first_drain = False

    def _take_exemplars(self, records: Iterable[bytes]) -> None:
        """The newest of each bucket; only those become objects, because there may be thousands of records."""
        newest: dict[tuple[str, int], tuple[bytes, int, int]] = {}
        for record in records:
            trace_id, stamps = unpack_stamps(record)
            for name, first, last in _TIMED:
                start, end = stamps[first], stamps[last]
                if start and end:
                    duration = max(end - start, 0)
                    newest[name, bisect_left(API.bounds, duration)] = trace_id, duration, end
        for (name, bucket), (trace_id, duration, end) in newest.items():
            self._exemplars[name][bucket] = Exemplar(trace_id.hex(), duration * _NANOSECONDS, end * _NANOSECONDS)

    def current(self, role: str) -> Iterator[Page]:
        """The pages of one role."""
        return (page for page in self.pages.values() if page.header.role == role)

    def live(self, role: str) -> Iterator[Page]:
        """Those of them whose owner lives, or may live out of sight."""
        return (page for page in self.current(role) if _may_live(page))

    @property
    def in_use(self) -> bool:
        """Whether any process has a page; those that an engine left behind say nothing of the next one."""
        return any(map(_may_live, self.pages.values()))

    def owners(self) -> dict[int, str]:
        """Pid of every live owner that is visible here -> its role."""
        return {page.pid: page.header.role for page in self.pages.values() if page.pid and _may_live(page)}

    def dead_roles(self, living: Mapping[str, int]) -> set[str]:
        """Roles with fewer living processes than pages: one died, and no other has taken its place."""
        there = Counter(page.header.role for page in self.pages.values())
        gone = {page.header.role for page in self.pages.values() if page.liveness in _GONE}
        return {role for role in gone if living.get(role, 0) < there[role]}

    def endpoints(self) -> dict[str, str]:
        """Role -> endpoint from all pages; the API's say most about itself and win."""
        found: dict[str, str] = {}
        for role in (EXPORTER.role, CORE.role, API.role):
            for page in self.current(role):
                found |= page.reader.endpoints()
        return found

    def samples(self) -> tuple[PageSample, ...]:
        """All pages as they are now."""
        return tuple(page.sample() for page in self.pages.values())

    def totals(self) -> dict[str, dict[str, int]]:
        """Role -> slot -> sum over all pages seen, for the roles seen."""
        return {
            role: dict(zip(LAYOUTS[role].slots, self._totals[role].values.tolist(), strict=False))
            for role in self._roles_seen()
        }

    def histograms(self) -> dict[str, dict[str, HistogramSample]]:
        """Role -> histogram -> durations in seconds over all pages seen, for the roles seen."""
        return {role: dict(self._histograms_of(LAYOUTS[role])) for role in self._roles_seen()}

    def _histograms_of(self, layout: Layout) -> Iterator[tuple[str, HistogramSample]]:
        numbers = self._totals[layout.role].values.tolist()
        for position, name in enumerate(layout.histograms):
            first = len(layout.slots) + position * layout.histogram_slots
            *counts, total = numbers[first : first + layout.histogram_slots]
            exemplars = dict(self._exemplars.get(name, {})) if layout is API else {}
            bounds, unit = (BYTE_BOUNDS, 1.0) if name in BYTE_HISTOGRAMS else (layout.bounds, _NANOSECONDS)
            scaled = tuple(bound * unit for bound in bounds)
            yield name, HistogramSample(scaled, tuple(counts), total * unit, exemplars)

    def _roles_seen(self) -> list[str]:
        return [role for role, total in self._totals.items() if total.seen]

    def close(self) -> None:
        """Close all pages."""
        for page in self.pages.values():
            page.ring = None
            page.reader.close()
        self.pages.clear()


def file_number(path: Path) -> int:
    """The inode of a page file; 0 when it is gone."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _may_live(page: Page) -> bool:
    return page.liveness in (Liveness.ALIVE, Liveness.UNKNOWN)


def _number_count(layout: Layout) -> int:
    return len(layout.slots) + len(layout.histograms) * layout.histogram_slots
