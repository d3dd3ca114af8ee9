"""Connections that the engine is trying to open: sockets in SYN_SENT, and since when.

A healthy connect is over long before a second scan. Only those that stay are looked up among the descriptors of the
engine's processes, which costs 3 µs for each descriptor, and that not more often than every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.collectors import NotVisibleError, Visibility
from sidecar.kernel import procfs
from sidecar.kernel.inet_diag import BODY_BYTES, MESSAGE, TcpState, tcp_request
from sidecar.kernel.netlink import TCPDIAG_GETSOCK, DiagSocket, Run
from sidecar.pace import Pace
from sidecar.snapshot import ConnectsSample
from sidecar.target import Member

CONNECTING: Final = np.dtype([("cookie", "u8"), ("inode", "u4")])
_LOOK_UP_SECONDS: Final = 5.0
_SHARE_OF_A_CORE: Final = 0.0004
_LONGEST_SECONDS: Final = 3.0
_FACT: Final = "connects"
_ADVICE: Final = (
    "cannot see which process is trying to connect: run the sidecar in the engine's pid namespace and as the engine's "
    "user, or as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
)


class SynSent:
    """Collects the rows of sockets that a process holds and that are connecting."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    def add(self, run: Run) -> None:
        """Copy the columns of one run."""
        messages = run.column(MESSAGE)
        picked = messages[(messages["state"] == TcpState.SYN_SENT) & (messages["inode"] != 0)]
        rows = np.zeros(len(picked), CONNECTING)
        for name in ("cookie", "inode"):
            rows[name] = picked[name]
        self._parts.append(rows)

    def rows(self) -> npt.NDArray[Any]:
        """All rows as a ``CONNECTING`` array."""
        return np.concatenate(self._parts) if self._parts else np.zeros(0, CONNECTING)


class Connects:
    """Follows the engine's connection attempts from scan to scan."""

    def __init__(self, root: Path, visibility: Visibility, thread_cpu: Callable[[], float]) -> None:
        self._root = root
        self._visibility = visibility
        self._thread_cpu = thread_cpu
        self._pace = Pace(_SHARE_OF_A_CORE, _LONGEST_SECONDS)
        self._active_opens: int | None = None
        self._since: dict[int, float] = {}
        self._owned: dict[int, bool] = {}
        self._looked_up = float("-inf")
        self._hidden = False

    def scan(self, diag: DiagSocket, members: Iterable[Member], active_opens: int | None, now: float) -> ConnectsSample:
        """Dump what is connecting in the namespace and keep what is the engine's.

        Args:
            diag: the socket to dump with.
            members: the engine's processes.
            active_opens: the namespace's counter of connection attempts. While it stands still and nothing was
                connecting before, nothing is now, and the dump (a walk over every connection) is left out. While it
                moves, the dump keeps to a share of a core: what does not connect stays for seconds.
            now: monotonic seconds.

        Raises:
            NetlinkError: the dump failed.
            NotVisibleError: sockets stay in SYN_SENT, and whose they are cannot be seen.
        """
        has_moved = active_opens is None or active_opens != self._active_opens
        if self._since or (has_moved and self._pace.is_due(now)):
            started = self._thread_cpu()
            request = tcp_request(1 << TcpState.SYN_SENT)
            rows = diag.dump(TCPDIAG_GETSOCK, request, BODY_BYTES, SynSent).rows()
            self._active_opens = active_opens
            self._judge(rows, members, now)
            self._pace.note(now, self._thread_cpu() - started)
        if self._hidden and any(cookie not in self._owned for cookie in self._since):
            raise NotVisibleError(_ADVICE)
        ages = [now - since for cookie, since in self._since.items() if self._owned.get(cookie)]
        return ConnectsSample(len(ages), max(ages, default=0.0))

    def _judge(self, rows: npt.NDArray[Any], members: Iterable[Member], now: float) -> None:
        inodes = dict(zip(rows["cookie"].tolist(), rows["inode"].tolist(), strict=True))
        stayed = [cookie for cookie in inodes if cookie in self._since]
        self._since = {cookie: self._since.get(cookie, now) for cookie in inodes}
        self._owned = {cookie: owned for cookie, owned in self._owned.items() if cookie in inodes}
        unjudged = [cookie for cookie in stayed if cookie not in self._owned]
        if unjudged and now >= self._looked_up + _LOOK_UP_SECONDS:
            self._looked_up = now
            held = self._held(members)
            if not self._hidden:
                self._owned |= {cookie: inodes[cookie] in held for cookie in unjudged}

    def _held(self, members: Iterable[Member]) -> set[int]:
        held: set[int] = set()
        self._hidden = False
        for member in members:
            try:
                held |= procfs.read_socket_inodes(self._root, member.pid)
            except PermissionError:
                self._hidden = True
            except (FileNotFoundError, ProcessLookupError):
                continue
        if self._hidden:
            self._visibility.hide(_FACT, _ADVICE)
        else:
            self._visibility.show(_FACT)
        return held
