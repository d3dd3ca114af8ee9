"""Facts from /proc: pure ``parse_*`` over bytes and thin ``read_*`` below an injected root.

``read_*`` raise what the open raised (FileNotFoundError and ProcessLookupError: the process is gone; PermissionError:
not ours to see) and ``ProcfsError`` for content that is not what proc(5) says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_SOCKET_LINK: Final = re.compile(r"socket:\[(\d{1,20})\]", re.ASCII)
_COUNTER_FILES: Final = ("netstat", "snmp")
_COUNTER_SECTIONS: Final = (b"TcpExt", b"Tcp")

_READ_BYTES: Final = 64 * 1024
_MOST_DIGITS: Final = 20
"""Of 64 bits. Python refuses to convert thousands of them, with an exception that no caller expects."""

STATE_NAMES: Final = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",  # an idle kernel thread
    "D": "disk_sleep",
    "T": "stopped",
    "t": "stopped",  # by a tracer
    "Z": "zombie",
    "X": "zombie",  # dead, for the moment before it vanishes
}


class ProcfsError(Exception):
    """A file of /proc whose content proc(5) does not describe; the message names the file's kind."""


def parse_number(word: bytes) -> int | None:
    """A decimal number as the kernel writes it, negative ones with a minus; None when the word is not one."""
    digits = word.removeprefix(b"-")
    return int(word) if len(digits) <= _MOST_DIGITS and digits.isdigit() else None


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/PID/stat."""

    pid: int
    name: str
    """At most 15 bytes of whatever the process called itself."""
    state: str
    """One of the values of ``STATE_NAMES``."""
    parent: int
    cpu_seconds: float
    """User and system time of all threads."""
    threads: int
    start_ticks: int
    """Start in clock ticks since boot; together with the pid it is unique until the next boot."""
    resident_bytes: int


def parse_stat(raw: bytes) -> Stat:
    """Parse /proc/PID/stat. The name lies between the first ``(`` and the last ``)`` and may hold both, and newlines.

    Raises:
        ProcfsError: not the content of a stat file.
    """
    opening, closing = raw.find(b"("), raw.rfind(b")")
    fields = raw[closing + 1 :].split()
    if not 0 < opening < closing or len(fields) < 22:
        raise ProcfsError("/proc/PID/stat is not of the form that proc(5) describes")
    try:
        return Stat(
            pid=int(raw[:opening]),
            name=raw[opening + 1 : closing].decode(errors="replace"),
            state=STATE_NAMES.get(fields[0].decode(errors="replace"), "sleeping"),
            parent=int(fields[1]),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            resident_bytes=max(int(fields[21]), 0) * PAGE_BYTES,
        )
    except (ValueError, OverflowError) as error:
        raise ProcfsError("/proc/PID/stat has a word where proc(5) has a number") from error


def parse_cmdline(raw: bytes) -> tuple[str, ...]:
    """Arguments of /proc/PID/cmdline; empty for zombies, kernel threads and processes that cleared it."""
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw.strip(b"\0") else ()


def parse_open_files_limit(raw: bytes) -> int | None:
    """The soft limit of open files in /proc/PID/limits; None when unlimited.

    Raises:
        ProcfsError: the file has no such line.
    """
    for line in raw.split(b"\n"):
        if line.startswith(b"Max open files"):
            words = line[len(b"Max open files") :].split()
            if words and words[0] == b"unlimited":
                return None
            limit = parse_number(words[0]) if words else None
            if limit is not None and limit >= 0:
                return limit
    raise ProcfsError("/proc/PID/limits has no line for open files")


def parse_net_counters(raw: bytes) -> dict[str, int]:
    """Counters of the Tcp and TcpExt sections of /proc/net/snmp or netstat, by the names in the header lines.

    Columns differ between kernels; a counter this kernel lacks is absent. A header without its values is skipped.
    """
    found: dict[str, int] = {}
    for names, values in pairwise(raw.split(b"\n")):
        section, _, rest = names.partition(b":")
        own, _, numbers = values.partition(b":")
        if section in _COUNTER_SECTIONS and own == section:
            found.update(_pair(rest.split(), numbers.split()))
    return found


def _pair(names: list[bytes], numbers: list[bytes]) -> Iterator[tuple[str, int]]:
    for name, word in zip(names, numbers, strict=False):
        number = parse_number(word)
        if number is not None:
            yield name.decode(errors="replace"), number


def parse_boot_time(raw: bytes) -> int:
    """Unix time of the boot from /proc/stat.

    Raises:
        ProcfsError: the file has no such line.
    """
    for line in raw.split(b"\n"):
        name, _, word = line.partition(b" ")
        seconds = parse_number(word.strip()) if name == b"btime" else None
        if seconds is not None and seconds >= 0:
            return seconds
    raise ProcfsError("/proc/stat has no btime line")


def parse_socket_link(target: str) -> int | None:
    """The inode of ``socket:[123]``; None for any other descriptor."""
    match = _SOCKET_LINK.fullmatch(target)
    return int(match[1]) if match else None


def read_file(root: Path, *parts: object) -> bytes:
    """A whole file of /proc. Joined as text and read unbuffered: pathlib costs more than the kernel's answer."""
    descriptor = os.open(f"{root}/{'/'.join(map(str, parts))}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, _READ_BYTES):
            content += piece
        return content
    finally:
        os.close(descriptor)


class StatFiles:
    """The stat files of a few processes, kept open: reading one again costs a third of opening it each time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[int, int] = {}

    def read(self, pid: int) -> bytes:
        """/proc/PID/stat as it is now.

        Raises:
            OSError: the process is gone, or not ours to see.
        """
        try:
            return os.pread(self._open[pid], _READ_BYTES, 0)
        except KeyError:
            pass
        except ProcessLookupError:  # the file is of the process that was opened, whoever has its pid now
            os.close(self._open.pop(pid))
        self._open[pid] = os.open(f"{self._root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._open[pid], _READ_BYTES, 0)

    def keep(self, pids: Collection[int]) -> None:
        """Close those of all other processes."""
        for pid in self._open.keys() - pids:
            os.close(self._open.pop(pid))


def list_names(directory: Path | int) -> list[str]:
    """Names in a directory that is given by path or descriptor."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def read_pids(root: Path) -> list[int]:
    """All processes of this pid namespace."""
    return [int(name) for name in list_names(root) if name.isdecimal() and name.isascii()]


def read_stat(root: Path, pid: int | str) -> Stat:
    """``parse_stat`` of a process."""
    return parse_stat(read_file(root, pid, "stat"))


def read_cmdline(root: Path, pid: int) -> tuple[str, ...]:
    """``parse_cmdline`` of a process."""
    return parse_cmdline(read_file(root, pid, "cmdline"))


def read_open_files_limit(root: Path, pid: int) -> int | None:
    """``parse_open_files_limit`` of a process."""
    return parse_open_files_limit(read_file(root, pid, "limits"))


def read_boot_time(root: Path) -> int:
    """``parse_boot_time`` of this machine."""
    return parse_boot_time(read_file(root, "stat"))


def read_net_counters(root: Path, pid: int | str = "self") -> dict[str, int]:
    """Counters of the network namespace of a process; needs no privilege."""
    found: dict[str, int] = {}
    for name in _COUNTER_FILES:
        found.update(parse_net_counters(read_file(root, pid, "net", name)))
    return found


def read_socket_inodes(root: Path, pid: int) -> set[int]:
    """Inodes of a process's sockets: 3 µs a descriptor, so only for processes that may own a new listener."""
    directory = os.open(root / str(pid) / "fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        links = (_read_link(name, directory) for name in list_names(directory))
        return {inode for inode in map(parse_socket_link, links) if inode is not None}
    finally:
        os.close(directory)


def _read_link(name: str, directory: int) -> str:
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:  # closed since the listing
        return ""


def sizes_count_descriptors(root: Path) -> bool:
    """Whether this kernel gives the number of descriptors as the size of /proc/PID/fd (Linux 6.2 and later)."""
    directory = root / "self" / "fd"
    try:
        return 0 < directory.stat().st_size == len(list_names(directory)) - 1  # the listing itself holds one open
    except OSError:
        return False


def read_descriptor_count(root: Path, pid: int | str, by_size: bool) -> int:
    """Open descriptors of a process: 1 µs and no privilege by size, else a listing that needs the same user."""
    directory = root / str(pid) / "fd"
    return directory.stat().st_size if by_size else len(list_names(directory))
