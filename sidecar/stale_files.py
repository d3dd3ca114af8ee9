"""Socket files that nobody is bound to: what a process that was killed leaves behind for its successor to trip over."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from sidecar.kernel.unix_diag import BoundFiles

_INODE_BITS: Final = 0xFFFFFFFF


def count_stale_files(directory: Path, bound: BoundFiles) -> int:
    """Socket files of a directory that no socket is bound to, by inode or by name.

    Raises:
        OSError: the directory cannot be read.
    """
    with os.scandir(directory) as entries:
        return sum(_is_stale(entry, bound) for entry in entries)


def _is_stale(entry: os.DirEntry[str], bound: BoundFiles) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(status.st_mode):
        return False
    return status.st_ino & _INODE_BITS not in bound.inodes and os.fsencode(entry.path) not in bound.names
