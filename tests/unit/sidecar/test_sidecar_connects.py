from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors import NotVisibleError, Visibility
from sidecar.connects import Connects, SynSent
from sidecar.kernel import procfs
from sidecar.kernel.inet_diag import BODY_BYTES
from sidecar.kernel.netlink import DiagSocket, split_messages
from sidecar.target import Member
from tests.unit.sidecar.oracle import InetSocket, done, fake_opener, inet_message

PROC = Path("/proc")
ME = Member(os.getpid(), 1, "api")


class Kernel:
    """Answers every dump with the sockets it is given, and counts them."""

    def __init__(self) -> None:
        self.sockets: list[InetSocket] = []
        self.dumps = 0
        self.diag = DiagSocket(fake_opener(self._answer))

    def _answer(self, _: bytes) -> Iterator[bytes]:
        self.dumps += 1
        yield b"".join(map(inet_message, self.sockets)) + done()


@pytest.fixture
def connects() -> Connects:
    return Connects(PROC, Visibility(), lambda: 0.0)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def trying(cookie: int, inode: int) -> InetSocket:
    return InetSocket(40000, 2, inode=inode, cookie=cookie)


@given(st.lists(st.builds(InetSocket, port=st.just(1), state=st.integers(1, 11), inode=st.integers(0, 2))))
def test_rows_are_those_that_a_process_is_connecting(sockets: list[InetSocket]) -> None:
    rows = SynSent()
    for run in split_messages(memoryview(b"".join(map(inet_message, sockets)) + done()), BODY_BYTES).runs:
        rows.add(run)
    assert rows.rows()["inode"].tolist() == [one.inode for one in sockets if one.state == 2 and one.inode]


def test_only_what_stays_and_is_held_by_the_engine_counts(connects: Connects, kernel: Kernel) -> None:
    with socket.socket() as mine:
        inode = os.fstat(mine.fileno()).st_ino
        kernel.sockets = [trying(1, inode), trying(2, 999_999_999)]
        assert connects.scan(kernel.diag, [ME], 2, 0.0).sockets == 0, "a connect may take a moment"
        kernel.sockets.append(trying(3, inode))
        found = connects.scan(kernel.diag, [ME], 3, 1.0)
        assert (found.sockets, found.oldest) == (1, 1.0)
        kernel.sockets = [trying(1, inode), trying(3, inode)]
        assert connects.scan(kernel.diag, [ME], 3, 2.0).sockets == 1, "looked up a moment ago"
        found = connects.scan(kernel.diag, [ME], 3, 6.5)
        assert (found.sockets, found.oldest) == (2, 6.5)
        kernel.sockets = []
        assert connects.scan(kernel.diag, [ME], 3, 7.5).sockets == 0


def test_no_dump_while_nothing_connects(connects: Connects, kernel: Kernel) -> None:
    for now, (opens, dumps) in enumerate(((5, 1), (5, 1), (6, 2), (6, 2), (None, 3))):
        connects.scan(kernel.diag, [ME], opens, float(now))
        assert kernel.dumps == dumps
    kernel.sockets = [trying(1, 7)]
    connects.scan(kernel.diag, [ME], 7, 5.0)
    kernel.sockets = []
    connects.scan(kernel.diag, [ME], 7, 6.0)
    assert kernel.dumps == 5, "something was connecting: what became of it?"


def test_dumps_keep_to_a_share_of_a_core_while_nothing_stays(kernel: Kernel) -> None:
    cpu = itertools.count(step=0.0004)  # what each dump takes
    connects = Connects(PROC, Visibility(), lambda: next(cpu))
    for second in range(10):
        connects.scan(kernel.diag, [ME], second, float(second))
    assert kernel.dumps == 10
    cpu = itertools.count(step=0.001)
    for second in range(10, 20):
        connects.scan(kernel.diag, [ME], second, float(second))
    assert kernel.dumps == 14
    kernel.sockets = [trying(1, 7)]
    for second in range(20, 25):
        connects.scan(kernel.diag, [ME], second, float(second))
    assert kernel.dumps == 17, "found at 22, and then something is connecting: looked at every second"


def test_hidden_owners_are_absent_and_said_once(
    connects: Connects, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> set[int]:
        raise PermissionError

    kernel.sockets = [trying(1, 7)]
    connects.scan(kernel.diag, [ME], 1, 0.0)
    monkeypatch.setattr(procfs, "read_socket_inodes", refuse)
    for now in (1.0, 2.0, 9.0):
        with pytest.raises(NotVisibleError):
            connects.scan(kernel.diag, [ME], 1, now)
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "cannot see which process is trying to connect: run the sidec"
    ]
    monkeypatch.undo()
    assert connects.scan(kernel.diag, [ME, Member(2**22, 1, "core")], 1, 20.0).sockets == 0


def test_a_black_hole_on_this_kernel(connects: Connects) -> None:
    diag = DiagSocket()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),
        socket.socket() as waiting,
    ):
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
        for now in (0.0, 1.0):
            found = connects.scan(diag, [ME], None, now)
        assert (found.sockets, found.oldest) == (1, 1.0)
    diag.close()
