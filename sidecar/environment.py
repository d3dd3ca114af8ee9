"""Which proxy variables the engine's processes were started with: their names only, never a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sidecar.collectors import Visibility
from sidecar.kernel.procinfo import PROXY_VARIABLES, read_environment_names
from sidecar.target import Member

_ADVICE: Final = (
    "cannot see whether proxy variables are set for the engine: run the sidecar as the engine's user, or as root with "
    "CAP_SYS_PTRACE"
)


class EnvironmentTracker:
    """Reads the environment of each process once: it stays what exec() was given."""

    def __init__(self, root: Path, visibility: Visibility) -> None:
        self._root = root
        self._visibility = visibility
        self._names: dict[Member, frozenset[str] | None] = {}

    def collect(self, members: Sequence[Member]) -> dict[str, bool] | None:
        """Variable -> whether a process of the engine has it; None when no environment could be read.

        Raises:
            OSError: /proc is not what it should be.
        """
        self._names = {member: self._known(member) for member in members}
        known = [names for names in self._names.values() if names is not None]
        if not known:
            return None
        return {name: any(name in names for names in known) for name in PROXY_VARIABLES}

    def _known(self, member: Member) -> frozenset[str] | None:
        names = self._names.get(member)
        return self._read(member) if names is None else names

    def _read(self, member: Member) -> frozenset[str] | None:
        try:
            names = read_environment_names(self._root, member.pid)
        except PermissionError:
            self._visibility.hide("environment", _ADVICE)
            return None
        except (FileNotFoundError, ProcessLookupError):
            return None
        self._visibility.show("environment")
        return names & frozenset(PROXY_VARIABLES)
