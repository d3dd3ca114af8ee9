"""More of a process from /proc: context switches, thread ids, names of environment variables, mapped files.

Kept apart from ``procfs`` because these cost more, or need to be the engine's user: they are read rarely or once.
``read_*`` raise what the open raised, as those of ``procfs`` do. Source: proc(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.kernel.procfs import ProcfsError, list_names, parse_number, parse_stat, read_file

PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_ENVIRONMENT_BYTES: Final = 1 << 20
_MAPS_BYTES: Final = 8 << 20
_MAPPED_PATH: Final = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ +(/.*)$", re.MULTILINE)
_DELETED: Final = b" (deleted)"


@dataclass(frozen=True, slots=True)
class Status:
    """/proc/PID/status, or that of one thread."""

    voluntary_switches: int
    """Of this thread alone; /proc/PID/status speaks of the main thread."""
    involuntary_switches: int
    innermost_id: int
    """The thread's id in its own pid namespace (last number of NSpid)."""


def parse_status(raw: bytes) -> Status:
    """Parse a status file.

    Raises:
        ProcfsError: a line that we need is missing or has no number.
    """
    found: dict[bytes, bytes] = {}
    for line in raw.split(b"\n"):
        name, _, value = line.partition(b":")
        found.setdefault(name, value)
    try:
        return Status(
            voluntary_switches=int(found[b"voluntary_ctxt_switches"]),
            involuntary_switches=int(found[b"nonvoluntary_ctxt_switches"]),
            innermost_id=int(found[b"NSpid"].split()[-1]),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise ProcfsError("/proc/PID/status lacks a line that proc(5) describes") from error


def parse_environment_names(raw: bytes) -> frozenset[str]:
    """Names of the variables that have a value, in lower case; the values are dropped here."""
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return frozenset(name.decode(errors="replace").lower() for name, _, value in pairs if name and value)


def parse_mapped_files(raw: bytes, suffix: bytes) -> tuple[bytes, ...]:
    """Paths in /proc/PID/maps with this ending, each once; deleted files are left out."""
    paths = _MAPPED_PATH.findall(raw)
    return tuple(dict.fromkeys(path for path in paths if path.endswith(suffix) and not path.endswith(_DELETED)))


def parse_sockstat(raw: bytes) -> dict[str, int]:
    """The numbers of the ``TCP:`` line of /proc/net/sockstat by name (inuse, orphan, tw, alloc, mem)."""
    found: dict[str, int] = {}
    for line in raw.split(b"\n"):
        section, _, rest = line.partition(b":")
        words = rest.split()
        if section == b"TCP":
            pairs = zip(words[::2], words[1::2], strict=False)
            numbers = ((name.decode(errors="replace"), parse_number(word)) for name, word in pairs)
            found = {name: number for name, number in numbers if number is not None}
    return found


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a process."""

    thread_id: int
    """As our pid namespace numbers it."""
    name: str
    state: str
    cpu_seconds: float
    start_ticks: int


def read_status(root: Path, pid: int) -> Status:
    """``parse_status`` of a process."""
    return parse_status(read_file(root, pid, "status"))


def read_environment_names(root: Path, pid: int) -> frozenset[str]:
    """``parse_environment_names`` of what the process was started with; needs the same user or CAP_SYS_PTRACE."""
    return parse_environment_names(_read_at_most(root / str(pid) / "environ", _ENVIRONMENT_BYTES))


def read_mapped_files(root: Path, pid: int, suffix: str) -> tuple[str, ...]:
    """``parse_mapped_files`` of a process, as its own mount namespace names them."""
    raw = _read_at_most(root / str(pid) / "maps", _MAPS_BYTES)
    return tuple(path.decode(errors="surrogateescape") for path in parse_mapped_files(raw, suffix.encode()))


def _read_at_most(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def read_sockstat(root: Path, pid: int | str) -> dict[str, int]:
    """``parse_sockstat`` of the process's network namespace."""
    return parse_sockstat(read_file(root, pid, "net", "sockstat"))


def read_thread_ids(root: Path, pid: int) -> list[int]:
    """All threads of a process, as our pid namespace numbers them."""
    return [int(name) for name in list_names(root / str(pid) / "task") if name.isdecimal()]


def read_thread(root: Path, pid: int, thread_id: int) -> Thread | None:
    """One thread; None when it has ended."""
    try:
        stat = parse_stat(read_file(root, pid, "task", thread_id, "stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    if stat.state == "zombie":
        return None
    return Thread(thread_id, stat.name, stat.state, stat.cpu_seconds, stat.start_ticks)


def read_inner_thread_ids(root: Path, pid: int, thread_ids: Iterable[int]) -> dict[int, int]:
    """Id in the process's own pid namespace -> id in ours; threads that end meanwhile are left out."""
    found = {}
    for thread_id in thread_ids:
        try:
            status = parse_status(read_file(root, pid, "task", thread_id, "status"))
        except (OSError, ProcfsError):
            continue
        found[status.innermost_id] = thread_id
    return found
