from __future__ import annotations

import dataclasses
import math
import random
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connections import Connections
from sidecar.cookies import Increments, Since
from sidecar.kernel.connection_rows import NEVER_SENT, ConnectionRows, info_fields, own_info_fields, read_rows
from sidecar.kernel.inet_diag import BODY_BYTES
from sidecar.kernel.netlink import DiagSocket, NetlinkError, split_messages
from sidecar.snapshot import ConnectionSample, EndSample, TcpDetail
from tests.unit.sidecar.oracle import CGROUP, MARK, InetSocket, done, fake_opener
from tests.unit.sidecar.tcp_oracle import INFO_ENDS, TcpSocket, info, read_tcp, summary, tcp_message

PORTS = {8000: "http", 5555: "input"}
SIZES = (104, 136, 160, 192, 208, 240)
"""Lengths of struct tcp_info over the years: 2.6, 4.1, 4.6, 4.10, 4.19, 6.2."""
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**50)
OFTEN_0 = st.just(0) | U32
FIELDS = {
    **dict.fromkeys(
        ("unacked", "last_data_sent", "last_data_recv", "total_retrans", "notsent_bytes", "snd_wnd"), OFTEN_0
    ),
    **dict.fromkeys(
        ("bytes_received", "bytes_sent", "delivery_rate", "rwnd_limited", "sndbuf_limited"), st.just(0) | U64
    ),
    "rtt": U32,
    "app_limited": st.integers(0, 7),
}


def infos(size: int) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(FIELDS).map(lambda fields: info(size, **fields))


def sockets(size: int) -> st.SearchStrategy[list[TcpSocket]]:
    base = st.builds(
        InetSocket,
        port=st.sampled_from([8000, 5555, 40000]),
        state=st.sampled_from([1, 1, 1, 2, 4, 5, 8, 9, 11]),
        receive=OFTEN_0,
        send=OFTEN_0,
        inode=st.sampled_from([0, 1, 77]),
        cookie=st.integers(0, 2**64 - 1),
        family=st.sampled_from([2, 10]),
        peer_port=st.sampled_from([8000, 5555, 40001]),
        extras=st.sampled_from([(), ((MARK, b"\0" * 4), (CGROUP, b"\1" * 8))]),
    )
    whole = st.builds(
        TcpSocket, base, st.sampled_from([0, 0, 1, 4]), infos(size), st.tuples(*[OFTEN_0] * 9) | st.none()
    )
    return st.lists(whole, max_size=12, unique_by=lambda one: one.base.cookie)


def scan(
    connections: Connections,
    found: Sequence[TcpSocket],
    now: float = 0.0,
    detailed: bool = True,
    idle_ms: int = NEVER_SENT,
) -> dict[int, ConnectionSample]:
    rows = ConnectionRows(list(PORTS), [5555], idle_ms)
    data = b"".join(map(tcp_message, found)) + done()
    for run in split_messages(memoryview(data), BODY_BYTES).runs:
        rows.add(run)
    return {sample.port: sample for sample in connections.observe(rows, PORTS, now, detailed)}


def assert_equal(found: Any, expected: Any, place: str = "") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for name, value in expected.items():
            assert_equal(found[name], value, f"{place}.{name}")
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-9), place
    else:
        assert found == expected, place


# --- one scan of anything


@given(
    st.sampled_from(SIZES).flatmap(lambda size: st.tuples(st.just(size), sockets(size))),
    st.sampled_from([0, 1000, 2**31, NEVER_SENT]),
)
def test_a_scan_equals_the_oracle(case: tuple[int, list[TcpSocket]], idle_ms: int) -> None:
    size, found = case
    known = {name: end for name, end in INFO_ENDS.items() if end <= size}
    seen = scan(Connections(info_fields(size)), found, idle_ms=idle_ms)
    read_back = list(read_tcp(b"".join(map(tcp_message, found)) + done()))
    for port in PORTS:
        assert_equal(dataclasses.asdict(seen[port]), summary(read_back, port, PORTS, known, idle_ms))


@given(sockets(240), st.lists(st.booleans(), min_size=12, max_size=12))
def test_rows_with_and_without_tcp_info_in_one_dump(found: list[TcpSocket], stripped: list[bool]) -> None:
    mixed = [
        dataclasses.replace(one, info=None, memory=None) if bare else one
        for one, bare in zip(found, stripped, strict=False)
    ]
    seen = scan(Connections(info_fields(240)), mixed)
    for port in PORTS:
        assert_equal(dataclasses.asdict(seen[port]), summary(mixed, port, PORTS, INFO_ENDS))


VALID = b"".join(
    tcp_message(TcpSocket(InetSocket(8000, cookie=number, receive=5), 4, info(rtt=9), (7,) * 9)) for number in range(4)
)


@given(st.integers(0, len(VALID) - 1), st.integers(0, 255), st.integers(0, len(VALID)))
def test_a_damaged_dump_raises_nothing_but_the_declared_exception(place: int, byte: int, end: int) -> None:
    data = (VALID[:place] + bytes([byte]) + VALID[place + 1 :])[:end]
    rows = ConnectionRows([8000])
    try:
        for run in split_messages(memoryview(data), BODY_BYTES).runs:
            rows.add(run)
    except NetlinkError:
        return
    Connections(info_fields(240)).observe(rows, {8000: "http"}, 0.0, True)


def test_no_ports_means_no_dump() -> None:
    diag = DiagSocket(fake_opener(lambda _: ()))
    assert Connections().scan(diag, {}, 0.0, True) == ()


def test_an_older_kernel_has_gaps_and_no_zeros() -> None:
    for size, absent in (
        (104, {"unsent", "receiver_limited", "buffer_limited", "delivery_min", "delivery_median", "unanswered"}),
        (192, {"unanswered", "unanswered_oldest"}),
    ):
        waiting = info(size, notsent_bytes=5, unacked=1, delivery_rate=7, bytes_received=4)
        end = scan(Connections(info_fields(size)), [TcpSocket(InetSocket(8000, inode=1, cookie=1), 0, waiting)])[8000]
        detail = detail_of(end)
        assert {name for name in absent if getattr(detail, name) is not None} == set()
        assert detail.retransmits == 0
        assert end.ends["accepted"].zero_window == 0, "a window that this kernel does not tell is not closed"


def detail_of(sample: ConnectionSample, direction: str = "accepted") -> TcpDetail:
    detail = sample.ends[direction].detail
    assert detail is not None
    return detail


def test_how_long_an_idle_connection_may_stay_is_told_and_not_guessed() -> None:
    quiet = [one(number, bytes_sent=9, bytes_received=9, last_data_sent=7000, last_data_recv=8000) for number in (1, 2)]
    for idle_ms, overdue in ((6500, 2), (7500, 0), (NEVER_SENT, 0)):
        sample = scan(Connections(info_fields(240)), quiet, idle_ms=idle_ms)[8000]
        assert detail_of(sample).overdue == overdue


# --- from scan to scan


def one(cookie: int = 1, timer: int = 0, memory: tuple[int, ...] | None = None, **fields: Any) -> TcpSocket:
    base = {
        name: fields.pop(name) for name in ("receive", "send", "state", "inode", "port", "peer_port") if name in fields
    }
    return TcpSocket(InetSocket(**{"port": 8000, "inode": 9, **base}, cookie=cookie), timer, info(**fields), memory)


def accepted(sample: ConnectionSample) -> EndSample:
    return sample.ends["accepted"]


def test_a_queue_is_stuck_after_five_seconds_without_getting_shorter() -> None:
    connections = Connections()
    for now, receive, stuck in (
        (0, 10, 0),
        (2, 10, 0),
        (4, 400, 0),
        (5, 400, 1),
        (6, 399, 0),
        (10, 399, 0),
        (11, 500, 1),
    ):
        sample = scan(connections, [one(receive=receive)], now)[8000]
        assert (now, accepted(sample).receive_stuck) == (now, stuck)
    assert accepted(scan(connections, [one(receive=0)], 12)[8000]).receive_stuck == 0
    assert accepted(scan(connections, [one(receive=500)], 13)[8000]).receive_stuck == 0, "it was empty in between"


def test_each_direction_has_its_own_stuck_sockets() -> None:
    found = [
        one(1, port=5555, receive=7),
        one(2, port=40000, peer_port=5555, send=90),
        one(3, port=40001, peer_port=5555, send=90),
        one(4, port=40002, peer_port=8000, send=90),  # a client of the engine, not the engine
        one(5, port=5555, receive=7, inode=0),  # not accepted yet: that is the accept queue's trouble
    ]
    connections = Connections()
    scan(connections, found, 0.0)
    ends = scan(connections, found, 5.0)[5555].ends
    assert (ends["accepted"].receive_stuck, ends["accepted"].send_stuck) == (1, 0)
    assert (ends["connecting"].receive_stuck, ends["connecting"].send_stuck) == (0, 2)
    assert set(scan(connections, found, 6.0)[8000].ends) == {"accepted"}


def test_the_fin_of_a_peer_that_left_is_not_an_unread_byte() -> None:
    connections = Connections()
    for receive, stuck in ((1, 0), (0, 0), (2, 1)):
        found = [one(cookie=receive + 1, state=8, receive=receive)]
        scan(connections, found, 0.0)
        assert accepted(scan(connections, found, 9.0)[8000]).receive_stuck == stuck


def test_a_starved_sidecar_forgets_since_when_queues_stand_but_not_who_leaks() -> None:
    connections = Connections()
    found = [one(1, receive=7), one(2, state=8)]
    scan(connections, found, 0.0)
    connections.restart_clocks(8.0)
    sample = scan(connections, found, 8.0)[8000]
    assert accepted(sample).receive_stuck == 0
    assert sample.close_wait_oldest == 8.0, "a socket never leaves CLOSE_WAIT and comes back"


def test_close_wait_is_owned_or_unaccepted_and_only_the_owned_age() -> None:
    connections = Connections()
    scan(connections, [one(1, state=8, inode=0)], 0.0)
    sample = scan(connections, [one(1, state=8, inode=0), one(2, state=8)], 10.0)[8000]
    assert (sample.states["close_wait"], sample.close_wait_owned, sample.unaccepted) == (2, 1, 1)
    assert sample.close_wait_oldest == 0.0
    later = [one(1, state=8, inode=0), one(2, state=8), one(3, state=8)]
    assert scan(connections, later, 70.0, detailed=False)[8000].close_wait_oldest == 60.0
    assert scan(connections, [one(3, state=8)], 75.0)[8000].close_wait_oldest == 5.0


def test_counters_add_what_each_socket_added_and_never_go_back() -> None:
    connections = Connections()

    def counted(*found: TcpSocket) -> tuple[int | None, float | None]:
        detail = detail_of(scan(connections, found)[8000])
        return detail.retransmits, detail.receiver_limited

    assert counted(one(1, total_retrans=3), one(2, rwnd_limited=1_500_000)) == (3, 1.5)
    assert counted(one(1, total_retrans=5), one(2, rwnd_limited=2_000_000)) == (5, 2.0)
    assert counted(one(2, rwnd_limited=2_000_000)) == (5, 2.0), "a socket that closed takes nothing with it"
    assert counted(one(1, total_retrans=6)) == (6, 2.0), "missed by one scan and not counted twice"
    assert counted(one(7, total_retrans=1)) == (7, 2.0)
    assert counted() == (7, 2.0)


def test_a_plain_scan_tells_the_last_detail_for_a_while_and_counts_on_later() -> None:
    connections = Connections()
    scan(connections, [one(1, total_retrans=3, rtt=500)], 0.0)
    plain = TcpSocket(InetSocket(8000, inode=9, cookie=1), 4)
    sample = scan(connections, [plain], 9.0, detailed=False)[8000]
    assert detail_of(sample).rtt_mean == 0.0005
    assert accepted(sample).zero_window == 1, "the probe timer is told without TCP_INFO"
    assert accepted(scan(connections, [plain], 11.0, detailed=False)[8000]).detail is None
    assert detail_of(scan(connections, [one(1, total_retrans=4)], 12.0)[8000]).retransmits == 4


def test_queues_of_orphans_are_nobodys() -> None:
    orphan, half_closed = one(1, state=4, inode=0, send=100_000), one(2, state=4, send=50)
    sample = scan(Connections(), [orphan, half_closed, one(3, inode=0, receive=8)])[8000]
    assert (sample.send_bytes, sample.receive_bytes) == (50, 8)
    assert accepted(sample).send_max == 50


def test_ports_that_come_and_go_without_end_are_forgotten() -> None:
    connections = Connections()
    for port in range(2000, 2200):
        rows = ConnectionRows([port])
        connections.observe(rows, {port: "other"}, 0.0, True)
    assert len(connections._totals) < 80


# --- what is remembered by cookie

STEPS = st.lists(st.dictionaries(st.integers(0, 12), st.integers(0, 5), max_size=12), max_size=8)


@given(STEPS)
def test_since_equals_a_dictionary(steps: list[dict[int, int]]) -> None:
    since, known = Since(), dict[int, tuple[int, float]]()
    for now, step in enumerate(steps):
        cookies, values = list(step), list(step.values())
        found = since.update(np.array(cookies, np.uint64), np.array(values, np.uint64), float(now))
        known = {
            cookie: (value, known[cookie][1] if cookie in known and value >= known[cookie][0] else float(now))
            for cookie, value in step.items()
        }
        assert found.tolist() == [known[cookie][1] for cookie in cookies]


@given(STEPS, st.randoms(use_true_random=False))
def test_increments_equal_a_dictionary(steps: list[dict[int, int]], chance: random.Random) -> None:
    increments, known, counters, total = Increments(1), dict[int, tuple[int, int]](), dict[int, int](), 0
    for now, step in enumerate(steps):
        for cookie, more in step.items():
            counters[cookie] = counters.get(cookie, 0) + more
        twice = chance.sample(list(step), min(len(step), 2))
        rows = [*step, *twice]
        values = np.array([[counters[cookie]] for cookie in rows], np.uint64).reshape(-1, 1)
        total += int(increments.update(np.array(rows, np.uint64), values).sum())
        for cookie in step:
            last, seen = known.get(cookie, (0, -9))
            if now - seen > 2:
                known.pop(cookie, None)
                last = 0
            known[cookie] = counters[cookie], now
            total -= counters[cookie] - last
        assert total == 0


# --- this kernel


@pytest.fixture
def diag() -> Iterator[DiagSocket]:
    opened = DiagSocket()
    yield opened
    opened.close()


def test_a_waiting_request_and_its_answer_on_real_sockets(diag: DiagSocket) -> None:
    connections = Connections()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def look() -> TcpDetail:
            return detail_of(connections.scan(diag, {port: "http"}, time.monotonic(), True)[0])

        with socket.create_connection(("127.0.0.1", port)) as client:
            silent = look()
            assert (silent.unanswered, silent.retransmits) == (0, 0)
            assert silent.rtt_mean is not None
            assert silent.rtt_mean == silent.rtt_max
            assert 0 < silent.rtt_mean < 1
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            time.sleep(0.05)
            waiting = look()
            assert waiting.unanswered == 1
            assert waiting.unanswered_oldest is not None
            assert 0.03 < waiting.unanswered_oldest < 5
            assert waiting.receive_memory > 0
            with listener.accept()[0] as served:
                served.recv(100)
                time.sleep(0.05)
                served.send(b"HTTP/1.1 204 No Content\r\n\r\n")
                assert look().unanswered == 0


def test_this_kernel_tells_every_field_that_we_read(diag: DiagSocket) -> None:
    assert own_info_fields() >= info_fields(240)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            rows = read_rows(diag, [port], [port], 0)
            assert rows.counts[:, 1].sum(axis=1).tolist() == [1, 1]
