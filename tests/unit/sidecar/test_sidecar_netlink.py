from __future__ import annotations

import errno
import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.kernel.connection_rows import ConnectionRows, read_rows
from sidecar.kernel.inet_diag import (
    BODY_BYTES,
    ListenerRows,
    TcpState,
    port_filter,
    read_bound,
    read_listeners,
    shows_bound,
    tcp_request,
)
from sidecar.kernel.netlink import BLOCK_BYTES, TCPDIAG_GETSOCK, DiagSocket, NetlinkError, Run, split_messages
from sidecar.kernel.unix_diag import BODY_BYTES as UNIX_BODY_BYTES
from sidecar.kernel.unix_diag import UnixSockets, read_unix_queues
from tests.unit.sidecar.oracle import (
    CGROUP,
    MARK,
    V6ONLY,
    InetSocket,
    UnixSocket,
    done,
    error,
    fake_opener,
    inet_message,
    message,
    read_inet,
    unix_message,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "netlink"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
EXTRAS = st.sampled_from(
    [
        (),
        ((MARK, b"\0" * 4),),
        ((V6ONLY, b"\1"),),
        ((MARK, b"\0" * 4), (CGROUP, b"\1" * 8)),
        ((V6ONLY, b"\0"), (9, b"")),
    ]
)
U32 = st.integers(0, 2**32 - 1)
INET_SOCKETS = st.lists(
    st.builds(
        InetSocket,
        port=st.sampled_from([80, 8000, 65535]),
        state=st.integers(1, 11),
        receive=U32,
        send=U32,
        inode=st.sampled_from([0, 1, 77]),
        cookie=st.integers(0, 2**64 - 1),
        drops=st.none() | U32,
        family=st.sampled_from([2, 10]),
        extras=EXTRAS,
    ),
    max_size=40,
)


def parse(reducer: Any, data: bytes, body_bytes: int = BODY_BYTES) -> Any:
    for run in split_messages(memoryview(data), body_bytes).runs:
        reducer.add(run)
    return reducer


def replay(*parts: bytes | OSError) -> DiagSocket:
    return DiagSocket(fake_opener(lambda _: parts))


# --- replies of the real kernel


def test_captured_listeners() -> None:
    rows = parse(ListenerRows(), (FIXTURES / "listen.bin").read_bytes()).rows()
    found = rows[["port", "depth", "limit", "drops", "inode"]].tolist()
    assert sorted(found) == sorted(tuple(row) for row in EXPECTED["listeners"])
    assert len(set(rows["cookie"].tolist())) == len(rows)


def test_captured_connections() -> None:
    full, six, half_open = EXPECTED["full"], EXPECTED["six"], EXPECTED["half_open"]
    rows = ConnectionRows([full["port"], six["port"], half_open["port"]])
    for name in ("connections_long", "connections_short"):
        parse(rows, (FIXTURES / f"{name}.bin").read_bytes())
    counts = rows.counts.sum(axis=2)
    assert counts[0, TcpState.ESTABLISHED] == full["established"]
    assert rows.counts[:3, TcpState.ESTABLISHED, 0].tolist() == [full["unaccepted"], 0, 0]
    assert counts[2, TcpState.SYN_RECEIVED] == half_open["syn_received"]
    assert {state: counts[1, TcpState[state.upper()]] for state in ("established", "close_wait", "time_wait")} == {
        state: six[state] for state in ("established", "close_wait", "time_wait")
    }
    assert rows.receive_bytes[1].sum() == six["receive_bytes"]


def test_captured_unix_sockets_join_by_peer() -> None:
    expected = EXPECTED["unix"]
    reducer = UnixSockets([expected["path"].encode(), b"/not/there"])
    found, absent = parse(reducer, (FIXTURES / "unix.bin").read_bytes(), UNIX_BODY_BYTES).queues()
    assert (found.sockets, found.receive_bytes) == (expected["sockets"], expected["receive_bytes"])
    assert found.send_bytes > found.receive_bytes
    assert absent.sockets == 0


@pytest.mark.parametrize("name", ["listen", "connections_long", "connections_short"])
def test_oracle_agrees_with_the_kernel(name: str) -> None:
    data = (FIXTURES / f"{name}.bin").read_bytes()
    assert Counter(one.state for one in read_inet(data)) == Counter(
        state for run in split_messages(memoryview(data), BODY_BYTES).runs for state in run.column("u1", 17).tolist()
    )


# --- any well-formed reply


@given(INET_SOCKETS)
def test_listener_rows_equal_the_oracle(sockets: list[InetSocket]) -> None:
    data = b"".join(map(inet_message, sockets)) + done()
    rows = parse(ListenerRows(), data).rows()
    assert rows.tolist() == [
        (one.port, one.inode, one.cookie, one.receive, one.send, one.drops or 0)
        for one in read_inet(data)
        if one.state == TcpState.LISTEN
    ]


@given(INET_SOCKETS)
def test_connection_rows_equal_the_oracle(sockets: list[InetSocket]) -> None:
    data = b"".join(map(inet_message, sockets)) + done()
    rows = parse(ConnectionRows([8000, 80]), data)
    for row, port in enumerate(rows.ports):
        own = [one for one in read_inet(data) if one.port == port]
        counts = Counter((one.state, one.inode != 0) for one in own)
        assert rows.counts[row].tolist() == [[counts[state, held] for held in (False, True)] for state in range(16)]
        assert rows.receive_bytes[row].sum() == sum(one.receive for one in own)
        assert rows.send_bytes[row].sum() == sum(one.send for one in own)


@given(
    st.lists(
        st.builds(
            UnixSocket,
            inode=st.integers(1, 30),
            state=st.sampled_from([1, 10]),
            name=st.sampled_from([b"", b"/run/a\0", b"/run/b\0", b"\0abstract", b"/run/a"]),
            peer=st.integers(0, 30),
            receive=st.integers(0, 1000),
            send=st.integers(0, 1000),
        ),
        max_size=30,
        unique_by=lambda one: one.inode,
    )
)
def test_unix_queues_equal_the_oracle(sockets: list[UnixSocket]) -> None:
    paths = [b"/run/a", b"\0abstract"]
    data = b"".join(map(unix_message, sockets)) + done()
    for path, queues in zip(paths, parse(UnixSockets(paths), data, UNIX_BODY_BYTES).queues(), strict=True):
        bound = [one for one in sockets if one.name.rstrip(b"\0") == path and one.state != 10]
        peers = {one.peer for one in bound}
        own = [one for one in sockets if one in bound or one.inode in peers]
        assert (queues.sockets, queues.receive_bytes) == (len(own), sum(one.receive for one in own))


# --- anything else


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    cut = st.integers(0, len(data)).map(lambda end: data[:end])
    flip = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)).map(
        lambda pair: data[: pair[0]] + bytes([pair[1]]) + data[pair[0] + 1 :]
    )
    return cut | flip


VALID = b"".join(inet_message(InetSocket(80, 10, drops=3, extras=((MARK, b"1234"),))) for _ in range(5)) + done()
VALID_UNIX = b"".join(unix_message(UnixSocket(number, name=b"/run/a\0", peer=9)) for number in range(5)) + done()


@given(st.binary(max_size=400) | damaged(VALID) | damaged(VALID_UNIX))
def test_garbage_raises_nothing_but_the_declared_exception(data: bytes) -> None:
    for reducer, body_bytes in (
        (ListenerRows(), BODY_BYTES),
        (ConnectionRows([80]), BODY_BYTES),
        (UnixSockets([b"/run/a"]), UNIX_BODY_BYTES),
    ):
        try:
            parse(reducer, data, body_bytes)
        except NetlinkError:
            continue


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0" * 8, "inside a header"),
        (b"\0" * 16, "claims 0"),
        (struct.pack("=IHHII", 500, 18, 2, 1, 0), "claims 500"),
        (message(b"\0" * 20), "shorter than its 88 fixed bytes"),
        (message(b"\0" * 72 + struct.pack("=HH", 3, 1)), "attribute 1 claims 3"),
        (message(b"", kind=2), "without an error code"),
        (error(errno.EPERM), "refused the socket dump: Operation not permitted"),
        (done(-errno.ENOENT), "No such file"),
        (done(-(2**31)), "2147483648 where an error code should be"),
    ],
)
def test_malformed_reply_is_told(data: bytes, words: str) -> None:
    with pytest.raises(NetlinkError, match=words):
        split_messages(memoryview(data), BODY_BYTES)


# --- the socket


def test_a_dump_larger_than_the_block() -> None:
    datagram = b"".join(inet_message(InetSocket(8000, 1, receive=1, inode=5)) for _ in range(300))
    count = 3 * BLOCK_BYTES // len(datagram)
    diag = replay(*[datagram] * count, done())
    rows = read_rows(diag, [8000], [], 0)
    assert rows.counts[0, TcpState.ESTABLISHED, 1] == 2 * count * 300  # the same answer for both masked dumps
    assert rows.receive_bytes[0].sum() == 2 * count * 300


def test_interrupted_dump_is_repeated_and_counted() -> None:
    answers = iter([[inet_message(InetSocket(1, 10), flags=0x12), done()], [inet_message(InetSocket(2, 10)), done()]])
    diag = DiagSocket(fake_opener(lambda _: next(answers)))
    assert read_listeners(diag)["port"].tolist() == [2]
    assert diag.retries == 1


def test_a_dump_that_is_always_interrupted_is_taken_in_the_end() -> None:
    diag = replay(inet_message(InetSocket(1, 10), flags=0x12), done())
    assert read_listeners(diag)["port"].tolist() == [1]
    assert diag.retries == 3


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.EINTR])
def test_lost_messages_are_asked_for_again(code: int) -> None:
    def answers() -> Iterator[list[bytes | OSError]]:
        yield [OSError(code, "lost")]
        yield [error(code)]
        yield [inet_message(InetSocket(3, 10)) + done()]

    generator = answers()
    diag = DiagSocket(fake_opener(lambda _: next(generator)))
    assert read_listeners(diag)["port"].tolist() == [3]
    assert diag.retries == 2


def test_a_refused_dump_raises_at_once_and_the_next_uses_a_new_socket() -> None:
    answers = iter([[error(errno.EPERM)], [done()]])
    diag = DiagSocket(fake_opener(lambda _: next(answers)))
    with pytest.raises(NetlinkError, match="not permitted") as caught:
        read_listeners(diag)
    assert caught.value.code == errno.EPERM
    assert len(read_listeners(diag)) == 0
    assert diag.retries == 0


def test_a_silent_kernel_is_an_error_not_a_hang() -> None:
    with pytest.raises(NetlinkError, match="cannot dump sockets"):
        read_listeners(replay())


def test_no_ports_means_no_dump() -> None:
    assert read_rows(replay(), [], [], 0).counts.shape == (0, 16, 2)
    assert read_unix_queues(replay(), []) == []


# --- requests


def accepts(program: bytes, port: int, peer: int = 0) -> bool:
    """inet_diag_bc_run() of net/ipv4/inet_diag.c for the operations in use."""
    position = 0
    while position < len(program):
        code, yes, no = struct.unpack_from("=BBH", program, position)
        if code in (11, 12):
            wanted = struct.unpack_from("=BBH", program, position + 4)[2]
            position += yes if wanted == (port if code == 11 else peer) else no
        else:
            position += no
    return position == len(program)


PORTS = st.lists(st.integers(0, 65535), max_size=20, unique=True)


@given(PORTS, PORTS, st.integers(0, 65535), st.integers(0, 65535))
def test_port_filter_accepts_exactly_its_ports(ports: list[int], peers: list[int], port: int, peer: int) -> None:
    program = port_filter(ports, peers)
    if not program:
        assert not ports + peers
        return
    assert all(accepts(program, wanted, peer) for wanted in ports)
    assert all(accepts(program, port, wanted) for wanted in peers)
    assert accepts(program, port, peer) == (port in ports or peer in peers)


def test_connecting_ends_count_for_the_queues_of_their_port_only() -> None:
    sockets = [
        InetSocket(5555, 1, receive=7, inode=1, peer_port=40000),
        InetSocket(40000, 1, send=90, inode=2, peer_port=5555),
        InetSocket(41000, 1, send=500, inode=3, peer_port=8000),
    ]
    rows = parse(ConnectionRows([8000, 5555], peer_ports=[5555]), b"".join(map(inet_message, sockets)) + done())
    assert rows.counts[:, 1, 1].tolist() == [0, 1, 0, 1]
    assert rows.receive_bytes.sum(axis=(1, 2)).tolist() == [0, 7, 0, 0]
    assert rows.send_bytes.sum(axis=(1, 2)).tolist() == [0, 0, 0, 90]


def test_bound_sockets_of_the_wanted_ports() -> None:
    rows = [inet_message(InetSocket(8000, 7, inode=5)) for _ in range(2)]
    assert read_bound(replay(b"".join(rows) + done()), [8000, 9000]) == {8000: 2, 9000: 0}
    assert read_bound(replay(), []) == {}


def test_this_kernel_shows_its_bound_sockets_or_says_that_it_does_not() -> None:
    assert shows_bound(replay(done())) is False
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        diag = DiagSocket()
        assert read_bound(diag, [bound.getsockname()[1]])[bound.getsockname()[1]] == int(shows_bound(diag))
        diag.close()


def test_request_layout() -> None:
    request = tcp_request(0x400, 64, ports=[8000])
    assert len(tcp_request(0x400)) == 60
    assert struct.unpack_from("=BBBB", request) == (0, 0, 0, 64)
    assert struct.unpack_from("=II", request, 52) == (0x400, 0)
    assert struct.unpack_from("=HH", request, 60) == (4 + 8, 1)


def test_an_answer_of_the_same_bytes_is_not_parsed_again() -> None:
    def listener(depth: int, flags: int = 2) -> list[bytes]:
        return [inet_message(InetSocket(80, 10, receive=depth, send=9), flags), done()]

    depths = (listener(1), listener(1), listener(2), listener(2, flags=0x12), listener(2), listener(1))
    answers = iter([*depths, [error(errno.EPERM)], listener(1)])
    diag = DiagSocket(fake_opener(lambda _: next(answers)))
    first, same, other, after_an_interrupted_one, back = (read_listeners(diag) for _ in range(5))
    assert first is same
    assert first["depth"].tolist() == [1]
    assert other["depth"].tolist() == [2]
    assert after_an_interrupted_one is other
    assert diag.retries == 1
    assert back["depth"].tolist() == [1]
    with pytest.raises(NetlinkError):
        read_listeners(diag)
    assert read_listeners(diag) is back


def test_equal_answers_to_other_questions_are_parsed() -> None:
    diag = replay(unix_message(UnixSocket(7, name=b"/run/a\0", receive=3)) + done())
    assert [one.receive_bytes for one in read_unix_queues(diag, [b"/run/a"])] == [3]
    assert [one.receive_bytes for one in read_unix_queues(diag, [b"/run/b", b"/run/a"])] == [0, 3]


def test_a_reducer_that_fails_costs_the_socket() -> None:
    class Broken:
        def add(self, run: Run) -> None:
            raise ZeroDivisionError

    opened = []

    def open_socket() -> socket.socket:
        opened.append(fake_opener(lambda _: [inet_message(InetSocket(1, 10)), done()])())
        return opened[-1]

    diag = DiagSocket(open_socket)
    with pytest.raises(ZeroDivisionError):
        diag.dump(TCPDIAG_GETSOCK, b"", BODY_BYTES, Broken)
    assert len(read_listeners(diag)) == 1
    assert len(opened) == 2
