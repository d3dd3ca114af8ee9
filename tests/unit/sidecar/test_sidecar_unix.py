from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.kernel.netlink import DiagSocket, NetlinkError, split_messages
from sidecar.kernel.unix_diag import BODY_BYTES, BoundFiles, UnixSockets, read_bound_files, read_unix_queues
from sidecar.stale_files import count_stale_files
from tests.unit.sidecar.oracle import UNIX, attribute, done, message


def row(
    inode: int, state: int, queues: tuple[int, int], peer: int = 0, name: bytes = b"", buffer: int = 212992
) -> bytes:
    body = UNIX.pack(1, 1, state, 0, inode, inode)
    body += attribute(0, name) if name else b""
    body += attribute(2, struct.pack("=I", peer)) if peer else b""
    body += attribute(4, struct.pack("=II", *queues))
    return message(body + attribute(5, struct.pack("=9I", 0, 0, 0, buffer, *[0] * 5)), kind=20)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 10]), st.integers(0, 300), st.integers(0, 300), st.integers(0, 1000)), max_size=20
    )
)
def test_queues_equal_the_slow_way(sockets: list[tuple[int, int, int, int]]) -> None:
    rows = [
        row(number, state, (receive, send), name=b"/run/a\0", buffer=buffer)
        for number, (state, receive, send, buffer) in enumerate(sockets, start=1)
    ]
    reducer = UnixSockets([b"/run/a"])
    for run in split_messages(memoryview(b"".join(rows) + done()), BODY_BYTES).runs:
        reducer.add(run)
    (found,) = reducer.queues()
    listening = [one for one in sockets if one[0] == 10]
    assert (found.pending, found.backlog) == (sum(one[1] for one in listening), sum(one[2] for one in listening))
    assert found.blocked == sum(one[0] == 1 and one[2] * 4 > one[3] for one in sockets)


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_the_declared_exception(data: bytes) -> None:
    try:
        for run in split_messages(memoryview(data), BODY_BYTES).runs:
            BoundFiles().add(run)
    except NetlinkError:
        return


@pytest.fixture
def diag() -> Iterator[DiagSocket]:
    opened = DiagSocket()
    yield opened
    opened.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "input.sock"))
        opened.listen(3)
        yield opened


def test_pending_accepts_against_the_backlog(diag: DiagSocket, listener: socket.socket) -> None:
    path = listener.getsockname()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for client in clients:
        client.connect(path)
    (found,) = read_unix_queues(diag, [os.fsencode(path)])
    assert (found.pending, found.backlog) == (4, 3)
    with socket.socket(socket.AF_UNIX) as one_more:
        one_more.setblocking(False)
        with pytest.raises(BlockingIOError):
            one_more.connect(path)
    for client in clients:
        client.close()


def test_a_writer_is_blocked_when_poll_says_so(diag: DiagSocket, listener: socket.socket) -> None:
    path = listener.getsockname()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        server, _ = listener.accept()
        client.setblocking(False)
        blocked = []
        for _ in range(60):
            client.send(b"x" * 1000)
            (found,) = read_unix_queues(diag, [os.fsencode(path)])
            blocked.append(found.blocked)
            assert found.blocked == (0 if is_writable(client) else 1)
        server.close()
    assert set(blocked) == {0, 1}


def is_writable(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    return bool(poll.poll(0))


def test_files_that_nobody_is_bound_to(diag: DiagSocket, listener: socket.socket, tmp_path: Path) -> None:
    assert count_stale_files(tmp_path, read_bound_files(diag)) == 0
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left.sock"))
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram.bind(str(tmp_path / "datagram.sock"))
    (tmp_path / "api-1.page").write_bytes(b"")
    (tmp_path / "moved.sock").symlink_to(tmp_path / "left.sock")
    assert count_stale_files(tmp_path, read_bound_files(diag)) == 0
    left.close()
    assert count_stale_files(tmp_path, read_bound_files(diag)) == 1
    datagram.close()
    assert count_stale_files(tmp_path, read_bound_files(diag)) == 2
