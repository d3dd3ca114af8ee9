"""How much memory a process can have at most: the lowest limit of its control groups, else all that the host has.

A limit holds for all processes of a group together. Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst
(memory.max), cgroup-v1/memory.rst (memory.limit_in_bytes), proc_meminfo(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from sidecar.kernel.procfs import read_file

_GROUPS: Final = Path("sys", "fs", "cgroup")
"""Beside /proc."""


def parse_memory_groups(raw: bytes) -> list[tuple[str, str]]:
    """Where the limits of a process are, from /proc/PID/cgroup: hierarchy below the mount, and name of the file.

    A group outside our own view (``/../``) is left out.
    """
    found = []
    for line in raw.decode(errors="surrogateescape").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in PurePosixPath(path).parts:
            continue
        if number == "0" and not controllers:
            found.append((path.strip("/"), "memory.max"))
        elif "memory" in controllers.split(","):
            found.append((f"memory/{path.strip('/')}".strip("/"), "memory.limit_in_bytes"))
    return found


def parse_limit(raw: bytes) -> int | None:
    """Bytes; None for ``max``. Version 1 writes a number that no machine has."""
    text = raw.strip()
    return int(text) if text.isdigit() else None


def parse_mem_total(raw: bytes) -> int | None:
    """Bytes of the host's memory from /proc/meminfo; None when it does not say."""
    for line in raw.splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split()
        if name == b"MemTotal" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def read_memory_limit(root: Path, pid: int | str) -> int | None:
    """The lowest of all limits that hold for a process; None when nothing tells one."""
    limits = [*_group_limits(root, pid), parse_mem_total(_read(root, "meminfo"))]
    return min((limit for limit in limits if limit is not None), default=None)


def _group_limits(root: Path, pid: int | str) -> Iterator[int | None]:
    for path, name in parse_memory_groups(_read(root, pid, "cgroup")):
        place = PurePosixPath(path)
        for group in (place, *place.parents):
            yield parse_limit(_read(root.parent / _GROUPS, group, name))


def _read(root: Path, *parts: object) -> bytes:
    try:
        return read_file(root, *parts)
    except OSError:  # no such group here, or nothing that we may see
        return b""
