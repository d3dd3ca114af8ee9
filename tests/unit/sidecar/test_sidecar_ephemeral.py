from __future__ import annotations

import ipaddress
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.ephemeral import Destinations, range_request, read_worst_destination
from sidecar.kernel.inet_diag import BODY_BYTES, TcpState
from sidecar.kernel.netlink import DiagSocket, split_messages
from sidecar.kernel.sysctl import PortRange
from sidecar.role_paths import RolePaths, read_role_paths
from tests.unit.sidecar.oracle import INET, attribute, done, fake_opener, message


@dataclass(frozen=True)
class Socket:
    """A connection with its addresses."""

    local: str
    port: int
    peer: str
    peer_port: int
    mapped: bool = False
    inode: int = 0
    extra: bool = False


def packed(text: str, mapped: bool) -> bytes:
    raw = ipaddress.ip_address(text).packed
    return b"\0" * 10 + b"\xff\xff" + raw if mapped and len(raw) == 4 else raw


def row(one: Socket, state: int = 1) -> bytes:
    family = 10 if one.mapped or ":" in one.local else 2
    ports = struct.pack(">H", one.port), struct.pack(">H", one.peer_port)
    ends = packed(one.local, one.mapped), packed(one.peer, one.mapped)
    body = INET.pack(family, state, 0, 0, *ports, *ends, 0, 0, 0, 0, 0, 0, one.inode)
    return message(body + (attribute(15, b"\0" * 4) if one.extra else b""))


def feed(reducer: Any, sockets: list[Socket]) -> Any:
    for run in split_messages(memoryview(b"".join(map(row, sockets)) + done()), BODY_BYTES).runs:
        reducer.add(run)
    return reducer


RANGE = PortRange(1000, 1099, frozenset({1050}))
SOCKETS = st.lists(
    st.builds(
        Socket,
        local=st.sampled_from(["192.0.2.1", "192.0.2.2", "fd00::1"]),
        port=st.integers(995, 1105),
        peer=st.sampled_from(["192.0.2.60", "192.0.2.61"]),
        peer_port=st.sampled_from([80, 8000]),
        mapped=st.booleans(),
        extra=st.booleans(),
    ),
    max_size=60,
)


@given(SOCKETS)
def test_worst_destination_equals_the_slow_way(sockets: list[Socket]) -> None:
    groups: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for one in sockets:
        if one.port in RANGE and one.port != 1001:
            groups[one.local, one.peer, one.peer_port].add(one.port)
    worst = feed(Destinations(RANGE, {1001}), sockets).worst()
    assert worst.used == max(map(len, groups.values()), default=0)
    if worst.address:
        named = [len(ports) for key, ports in groups.items() if key[1:] == (worst.address, worst.port)]
        assert worst.used in named


def test_case_17_one_destination_and_time_wait_without_an_owner() -> None:
    toward = [Socket("192.0.2.50", port, "192.0.2.60", 8000) for port in range(1000, 1090)]  # 1050 is reserved
    others = [Socket("192.0.2.50", 1000 + number, "192.0.2.60", 9000 + number) for number in range(99)]
    answers = {False: toward[:10] + others, True: toward[10:]}

    def answer(request: bytes) -> list[bytes]:
        states = struct.unpack_from("=I", request, 52)[0]
        time_wait = states == 1 << TcpState.TIME_WAIT
        return [b"".join(row(one, 6 if time_wait else 1) for one in answers[time_wait]) + done()]

    worst = read_worst_destination(DiagSocket(fake_opener(answer)), RANGE, ())
    assert (worst.used, worst.size, worst.address, worst.port) == (89, 99, "192.0.2.60", 8000)


def test_an_address_mapped_into_ipv6_is_the_same_destination() -> None:
    sockets = [Socket("192.0.2.1", 1000 + number, "192.0.2.60", 80, mapped=bool(number % 2)) for number in range(8)]
    worst = feed(Destinations(RANGE, ()), sockets).worst()
    assert (worst.used, worst.address) == (8, "192.0.2.60")


def test_no_connection_at_all() -> None:
    assert feed(Destinations(RANGE, ()), []).worst().used == 0


def accepts(program: bytes, port: int) -> bool:
    """inet_diag_bc_run() of net/ipv4/inet_diag.c for the operations in use."""
    position = 0
    while position < len(program):
        code, yes, no = struct.unpack_from("=BBH", program, position)
        operand = struct.unpack_from("=BBH", program, position + 4)[2]
        position += yes if (port >= operand if code == 2 else port <= operand) else no
    return position == len(program)


@given(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 65535))
def test_range_filter_accepts_exactly_the_range(first: int, second: int, port: int) -> None:
    low, high = sorted((first, second))
    program = range_request(1, PortRange(low, high))[64:]
    assert accepts(program, port) == (low <= port <= high)


# --- addresses of the connections of a role


@given(SOCKETS)
def test_pairs_of_a_role_equal_the_slow_way(sockets: list[Socket]) -> None:
    roles = {80: "http", 1000: "output"}
    paths = feed(RolePaths(roles), sockets)
    expected: dict[str, set[tuple[bytes, bytes]]] = defaultdict(set)
    for one in sockets:
        role = roles.get(one.port) or roles.get(one.peer_port)
        if role:
            expected[role].add((packed(one.local, mapped=False), packed(one.peer, mapped=False)))
    assert paths.pairs == expected


def test_pairs_and_sockets_of_a_role_are_bounded() -> None:
    sockets = [Socket("192.0.2.1", 80, f"198.51.100.{number}", 5, inode=number) for number in range(200)]
    paths = feed(RolePaths({80: "http", 81: "input"}), sockets)
    assert len(paths.pairs["http"]) == 32
    assert len(paths.inodes["http"]) == 4
    assert 0 not in paths.inodes["http"]


def test_no_roles_means_no_dump() -> None:
    assert read_role_paths(DiagSocket(fake_opener(lambda _: [])), {}).pairs == {}


@pytest.mark.parametrize("text", ["127.0.0.1", "192.0.2.1", "fd00::1", "::1", "fe80::fc:ff:fe00:1"])
def test_addresses_keep_their_bytes(text: str) -> None:
    paths = feed(RolePaths({80: "http"}), [Socket(text, 80, text, 5)])
    assert paths.pairs["http"] == {(ipaddress.ip_address(text).packed,) * 2}
