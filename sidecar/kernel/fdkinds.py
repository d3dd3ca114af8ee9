"""What a file descriptor is, by the text that /proc/PID/fd/N links to, and one process's descriptors by kind.

Sources: proc_pid_fd(5); names of anonymous inodes from fs/eventfd.c, fs/eventpoll.c, fs/notify/inotify.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.kernel.procfs import list_names

KINDS: Final = ("socket", "pipe", "eventfd", "epoll", "inotify", "shm", "device", "file", "other")
_ANONYMOUS: Final = {"eventfd": "eventfd", "eventpoll": "epoll", "inotify": "inotify"}
_BEGINNINGS: Final = (
    ("socket:[", "socket"),
    ("pipe:[", "pipe"),
    ("/memfd:", "shm"),
    ("/dev/shm/", "shm"),  # noqa: S108 - compared, not opened
    ("/SYSV", "shm"),
    ("/dev/", "device"),
    ("/", "file"),
)
_UNREAD: Final = 0
_CODES: Final = {kind: code for code, kind in enumerate(KINDS, start=1)}
_MOST_DESCRIPTORS: Final = 1 << 20
"""A table as long as the highest descriptor is kept; the kernel's default for nr_open is this."""


def parse_kind(link: str) -> str:
    """The kind of a descriptor, one of ``KINDS``. A named FIFO counts as a file: its link is its path."""
    if link.startswith("anon_inode:"):
        return _ANONYMOUS.get(link.removeprefix("anon_inode:").strip("[]"), "other")
    return next((kind for beginning, kind in _BEGINNINGS if link.startswith(beginning)), "other")


class DescriptorTable:
    """The descriptors of one process by kind. Links are read for new descriptors only, and for some known ones in turn.

    The latter because a number that was closed and opened again between two listings looks the same.
    """

    def __init__(self) -> None:
        self._codes: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._turn = 0
        self.counts: dict[str, int] = {}
        """Kind -> descriptors, for the kinds there are."""
        self.unread = 0
        """Descriptors whose kind is not known yet."""

    def update(self, root: Path, pid: int, budget: int, again: int) -> int:
        """List the descriptors and read links; returns how many.

        Args:
            root: where /proc is.
            pid: the process.
            budget: links of new descriptors to read at most; the rest comes with later calls.
            again: links of known descriptors to read at most.

        Raises:
            OSError: the process is gone (FileNotFoundError, ProcessLookupError) or not ours to see (PermissionError).
        """
        directory = os.open(root / str(pid) / "fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            present = np.array([int(name) for name in list_names(directory) if name.isdecimal()], np.int64)
            wanted = self._choose(present[present < _MOST_DESCRIPTORS], budget, again)
            self._codes[wanted] = [_read_code(number, directory) for number in wanted]
        finally:
            os.close(directory)
        closed = int(np.count_nonzero(self._codes[wanted] == _UNREAD))
        self._count(len(present) - closed)
        return len(wanted)

    def _choose(self, present: npt.NDArray[Any], budget: int, again: int) -> list[int]:
        codes = np.zeros(int(present.max(initial=-1)) + 1, np.uint8)
        known = present[present < len(self._codes)]
        codes[known] = self._codes[known]
        self._codes = codes
        is_new = codes[present] == _UNREAD
        old = np.sort(present[~is_new])
        in_turn = np.roll(old, -int(np.searchsorted(old, self._turn)))[:again]
        self._turn = int(in_turn[-1]) + 1 if len(in_turn) else 0
        return [*present[is_new][:budget].tolist(), *in_turn.tolist()]

    def _count(self, total: int) -> None:
        counts = np.bincount(self._codes, minlength=len(KINDS) + 1).tolist()
        self.counts = {kind: counts[code] for kind, code in _CODES.items() if counts[code]}
        self.unread = max(total - sum(self.counts.values()), 0)


def _read_code(number: int, directory: int) -> int:
    try:
        return _CODES[parse_kind(os.readlink(str(number), dir_fd=directory))]
    except (FileNotFoundError, ProcessLookupError):  # closed since the listing
        return _UNREAD
