"""The shared-memory page: what a process is doing now, readable while it hangs and after it died.

One file per process in the runtime directory. Its owner writes, anybody who may read the file reads; there is nothing
to block on. Slots are aligned 8-byte integers with one writer thread each, which never tear. The owner holds a POSIX
lock on byte 0 for as long as it lives: the kernel drops it at death, and F_GETLK answers with the owner's pid as the
*reader's* pid namespace numbers it.

Closing any descriptor of the file in the owning process would drop the lock (fcntl(2)), so a Reader of this process's
own page keeps its descriptors for good.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from telemetry.layout import ENDPOINT_BYTES, ENDPOINT_ENTRIES, HEADER_BYTES, LAYOUT_VERSION, LAYOUTS, Layout
from telemetry.records import RingReader, RingWriter

SUFFIX: Final = ".page"
_MAGIC: Final = b"ENGSCOPE"
# magic, layout version, header bytes, digest, pid, pid namespace inode, start ticks, created (wall ns), generation,
# clean exit flag, role, instance name
_HEADER: Final = struct.Struct("<8sIIQQQQQQQ16s32s")
_CLEAN_EXIT_OFFSET: Final = 64
_FLOCK: Final = struct.Struct("hhqqi4x")
_ENDPOINT: Final = struct.Struct(f"<16s{ENDPOINT_BYTES - 16}s")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_PROT_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED: Final = 0x10


class PageError(Exception):
    """A page that cannot be read; the message is one sentence for the operator."""


class Liveness(Enum):
    """What a page says about its owner."""

    ALIVE = "alive"
    EXITED = "exited"
    """Shut down on purpose."""
    DEAD = "dead"
    UNKNOWN = "unknown"
    """The lock is free, but the owner's pid namespace is not ours, so it may have lost the lock and live."""


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote a page. ``pid`` is as the owner's own pid namespace numbers it."""

    role: str
    name: str
    pid: int
    pid_namespace: int
    start_ticks: int
    created_ns: int
    generation: int
    """How often this role was started before under the same launcher."""


def runtime_directory(create: bool = False) -> Path:
    """The directory of the pages: ``$ENGINESCOPE_RUNTIME_DIR``, else /run/enginescope, else one under the temp dir.

    Raises:
        PageError: the directory cannot be made, or belongs to somebody else.
    """
    chosen = os.environ.get("ENGINESCOPE_RUNTIME_DIR")
    system = Path("/run/enginescope")
    if chosen:
        path = Path(chosen)
    elif os.access(system if system.is_dir() else system.parent, os.W_OK):
        path = system
    else:
        path = Path(os.environ.get("TMPDIR", "/tmp")) / f"enginescope-{os.getuid()}"  # noqa: S108 - checked below
    if create:
        _make_private(path)
    return path


def _make_private(path: Path) -> None:
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        owner = path.stat().st_uid
    except OSError as error:
        raise PageError(f"cannot make the runtime directory {path}: {error.strerror}") from error
    if owner not in (os.getuid(), 0):
        raise PageError(f"the runtime directory {path} belongs to uid {owner}, not to uid {os.getuid()} or root")


def start_ticks(pid: int | str = "self") -> int | None:
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat); None for a zombie or no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class HistogramWriter:
    """Counts durations into fixed buckets; one thread only."""

    __slots__ = ("_bounds", "_first", "_slots", "_sum")

    def __init__(self, slots: memoryview, first: int, bounds: tuple[int, ...]) -> None:
        self._slots = slots
        self._bounds = bounds
        self._first = first
        self._sum = first + len(bounds) + 1

    def observe(self, duration_ns: int) -> None:
        """Count one duration in nanoseconds; negative ones (clock steps) count as 0."""
        duration_ns = max(duration_ns, 0)
        self._slots[self._first + bisect_left(self._bounds, duration_ns)] += 1
        self._slots[self._sum] += duration_ns


class Writer:
    """Owns one page for the life of this process. Hot code keeps ``slots`` and the indexes in local variables."""

    def __init__(self, directory: Path, layout: Layout, name: str = "", generation: int = 0) -> None:
        """Create the page; it appears under its final name complete or not at all.

        Raises:
            PageError: the file cannot be created, filled or locked.
        """
        self.layout = layout
        self.name = name or layout.role
        self._directory = directory
        self._generation = generation
        self._fd, self.path = self._create_file()
        self._map = mmap.mmap(self._fd, layout.size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._bytes = memoryview(self._map)
        self.slots = self._bytes.cast("Q")
        self._publish()
        _writers.add(self)

    def index(self, slot: str) -> int:
        """Where a slot is in ``slots``."""
        return self.layout.slot_index[slot]

    def __getitem__(self, slot: str) -> int:
        return int(self.slots[self.layout.slot_index[slot]])

    def __setitem__(self, slot: str, value: int) -> None:
        self.slots[self.layout.slot_index[slot]] = value

    def histogram(self, name: str) -> HistogramWriter:
        """The writer of one histogram."""
        return HistogramWriter(self.slots, self.layout.histogram_index[name], self.layout.bounds)

    def ring(self) -> RingWriter:
        """The writer of the page's ring."""
        return RingWriter(self._bytes, self.layout)

    def set_endpoints(self, endpoints: dict[str, str]) -> None:
        """Publish which socket plays which role: role -> ZMQ endpoint or host:port."""
        for entry, (role, endpoint) in enumerate(list(endpoints.items())[:ENDPOINT_ENTRIES]):
            offset = HEADER_BYTES + entry * ENDPOINT_BYTES
            _ENDPOINT.pack_into(self._bytes, offset, role.encode()[:16], endpoint.encode()[: ENDPOINT_BYTES - 16])

    def close(self) -> None:
        """Leave on purpose: set the clean-exit flag, then let go of the lock. The file stays for readers."""
        if self._fd >= 0:
            self.slots[_CLEAN_EXIT_OFFSET // 8] = 1
            os.close(self._fd)
            self._fd = -1

    def _create_file(self) -> tuple[int, Path]:
        path = self._directory / f"{self.name}-{os.getpid()}{SUFFIX}"
        temporary = path.with_suffix(f"{SUFFIX}.tmp")
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
            # Reserve the blocks now: a store to a full tmpfs later would be a SIGBUS.
            os.posix_fallocate(fd, 0, self.layout.size)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            raise PageError(f"cannot create the page {path}: {error.strerror}") from error
        return fd, path

    def _publish(self) -> None:
        _HEADER.pack_into(
            self._bytes,
            0,
            _MAGIC,
            LAYOUT_VERSION,
            HEADER_BYTES,
            self.layout.digest,
            os.getpid(),
            Path("/proc/self/ns/pid").stat().st_ino,
            start_ticks() or 0,
            time.time_ns(),
            self._generation,
            0,
            self.layout.role.encode(),
            self.name.encode()[:32],
        )
        self.path.with_suffix(f"{SUFFIX}.tmp").rename(self.path)

    def _after_fork(self) -> None:
        """Give the child a page of its own at the same address, so that every kept memoryview writes to it.

        On any error the child gets anonymous memory there: it must never write into its parent's page.
        """
        if self._fd < 0:
            return
        os.close(self._fd)  # POSIX locks are not inherited, so this cannot drop the parent's
        try:
            self._fd, self.path = self._create_file()
            self._remap(mmap.MAP_SHARED, self._fd)
            self._publish()
        except (OSError, PageError):
            self._fd = -1
            self._remap(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)

    def _remap(self, flags: int, fd: int) -> None:
        address = _libc.mmap(self._address, self.layout.size, _PROT_READ_WRITE, flags | _MAP_FIXED, fd, 0)
        if address != self._address:
            raise OSError(ctypes.get_errno(), "mmap of the child's page failed")


_kept_open: list[mmap.mmap] = []
_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _give_child_pages() -> None:
    for writer in list(_writers):
        writer._after_fork()


os.register_at_fork(after_in_child=_give_child_pages)


def _is_own(status: os.stat_result) -> bool:
    """Whether a file is a page that this process holds the lock of."""
    own = [os.fstat(writer._fd) for writer in list(_writers) if writer._fd >= 0]
    return any((status.st_dev, status.st_ino) == (mine.st_dev, mine.st_ino) for mine in own)


class Reader:
    """Reads a page of any process that this one may open; never writes, never blocks."""

    def __init__(self, path: Path) -> None:
        """Map a page.

        Raises:
            PageError: not a page, truncated, of another layout version, or not readable.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise PageError(f"cannot open the page {path}: {error.strerror}") from error
        try:
            self.header, self.layout = _check_header(path, os.pread(self._fd, _HEADER.size, 0), os.fstat(self._fd))
            self._map = mmap.mmap(self._fd, self.layout.size, prot=mmap.PROT_READ)
        except (PageError, OSError):
            os.close(self._fd)
            raise
        self._bytes = memoryview(self._map)
        self._slots = self._bytes.cast("Q")

    def __getitem__(self, slot: str) -> int:
        return int(self._slots[self.layout.slot_index[slot]])

    def values(self) -> dict[str, int]:
        """All slots by name; each is exact, two of them may be a moment apart."""
        first = self.layout.slot_index[self.layout.slots[0]]
        return dict(zip(self.layout.slots, self._slots[first : first + len(self.layout.slots)].tolist(), strict=True))

    def histogram(self, name: str) -> tuple[list[int], int]:
        """Bucket counts (finite bounds, then +Inf; not cumulative) and the sum in nanoseconds."""
        first = self.layout.histogram_index[name]
        values = self._slots[first : first + self.layout.histogram_slots].tolist()
        return values[:-1], values[-1]

    def ring(self, position: int = 0) -> RingReader:
        """A new reader of the ring, from the first record that is still there at or after ``position``."""
        return RingReader(self._bytes, self.layout, position)

    def endpoints(self) -> dict[str, str]:
        """Role -> endpoint, as the owner published them."""
        found = {}
        for entry in range(ENDPOINT_ENTRIES):
            role, endpoint = _ENDPOINT.unpack_from(self._bytes, HEADER_BYTES + entry * ENDPOINT_BYTES)
            if role.rstrip(b"\0"):
                found[_text(role)] = _text(endpoint)
        return found

    def owner(self) -> int | None:
        """Pid of the lock's holder in this process's pid namespace; 0 when it is not visible there; None when free."""
        probe = fcntl.fcntl(self._fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        kind, _, _, _, pid = _FLOCK.unpack(probe)
        return None if kind == fcntl.F_UNLCK else int(pid)

    def liveness(self) -> Liveness:
        """Whether the owner lives, left on purpose, or died."""
        return self.look()[1]

    def look(self) -> tuple[int | None, Liveness]:
        """``owner`` and ``liveness`` in one question to the kernel."""
        owner = self.owner()
        return owner, self._liveness_without_lock() if owner is None else Liveness.ALIVE

    def _liveness_without_lock(self) -> Liveness:
        if self._slots[_CLEAN_EXIT_OFFSET // 8]:
            return Liveness.EXITED
        if self.header.pid_namespace != Path("/proc/self/ns/pid").stat().st_ino:
            return Liveness.UNKNOWN
        return Liveness.ALIVE if start_ticks(self.header.pid) == self.header.start_ticks else Liveness.DEAD

    def close(self) -> None:
        """Unmap the page. Its RingReaders must not be used any more."""
        self._slots.release()
        self._bytes.release()
        if _is_own(os.fstat(self._fd)):
            _kept_open.append(self._map)  # it holds a duplicate of the descriptor
        else:
            os.close(self._fd)


def _check_header(path: Path, raw: bytes, status: os.stat_result) -> tuple[Header, Layout]:
    if len(raw) < _HEADER.size or raw[: len(_MAGIC)] != _MAGIC:
        raise PageError(f"{path} is not a scoreboard page")
    _, version, _, digest, pid, namespace, ticks, created, generation, _, role, name = _HEADER.unpack(raw)
    layout = LAYOUTS.get(_text(role))
    if version != LAYOUT_VERSION or layout is None or digest != layout.digest:
        raise PageError(
            f"{path} was written with layout {version} of role {_text(role)!r} (digest {digest:016x}), which this "
            f"release does not know: run the same enginescope release on both sides"
        )
    if status.st_size < layout.size:
        raise PageError(f"{path} is truncated: {status.st_size} of {layout.size} bytes")
    return Header(layout.role, _text(name), pid, namespace, ticks, created, generation), layout


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")


def pages(directory: Path) -> Iterator[Path]:
    """The page files of a runtime directory, oldest first; none when there is no such directory."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        try:
            found.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:
            continue
    yield from (path for _, path in sorted(found))


def remove_stale(directory: Path) -> int:
    """Delete pages whose owner is gone and return how many. For launchers, at start."""
    removed = 0
    for path in pages(directory):
        try:
            reader = Reader(path)
        except PageError:
            continue
        stale = reader.liveness() in (Liveness.DEAD, Liveness.EXITED)
        reader.close()
        if stale:
            path.unlink(missing_ok=True)
            removed += 1
    return removed
