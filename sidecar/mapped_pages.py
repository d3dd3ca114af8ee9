"""Pages that the engine has mapped somewhere else than in the sidecar's runtime directory.

In a container of its own the sidecar may share the engine's pid namespace and not its runtime directory. The files are
still reachable through /proc/PID/root, which needs the engine's user or CAP_SYS_PTRACE.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from sidecar.kernel.procinfo import read_mapped_files
from sidecar.target import Member
from telemetry.layout import SIDECAR
from telemetry.scoreboard import SUFFIX

_DELAYS: Final = (1.0, 60.0)
"""A process maps its page while it starts; reading its maps takes milliseconds, so it is looked at ever more rarely."""


class MappedPages:
    """Looks into the maps of processes that have no known page."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._due: dict[Member, tuple[float, float]] = {}

    def find(self, members: Sequence[Member], owners: Collection[int], now: float) -> list[Path]:
        """Paths of pages newly found, through /proc/PID/root.

        Args:
            members: the engine's processes.
            owners: those of them (pids) that are known to own a page.
            now: monotonic seconds.
        """
        self._due = {member: self._due.get(member, (now, _DELAYS[0])) for member in members}
        found: list[Path] = []
        for member, (due, delay) in self._due.items():
            if member.pid not in owners and now >= due:
                self._due[member] = now + delay, min(delay * 2, _DELAYS[1])
                found += self._look_into(member.pid)
        return found

    def _look_into(self, pid: int) -> list[Path]:
        try:
            mapped = read_mapped_files(self._root, pid, SUFFIX)
        except OSError:  # gone, or not ours to see, which the collectors of the process say already
            return []
        paths = [self._root / str(pid) / "root" / path.lstrip("/") for path in mapped]
        return [path for path in paths if not path.name.startswith(f"{SIDECAR.role}-")]
