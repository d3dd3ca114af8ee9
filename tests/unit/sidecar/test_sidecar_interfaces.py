from __future__ import annotations

import errno
import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.facts import InterfaceSample
from sidecar.kernel.interfaces import (
    IFF_LOOPBACK,
    IFF_RUNNING,
    Interfaces,
    Link,
    parse_addresses,
    parse_attributes,
    parse_ethtool_command,
    parse_links,
    parse_messages,
    parse_route,
    read_interfaces,
    route_request,
)
from sidecar.kernel.netlink import NetlinkError
from sidecar.role_paths import fastest, judge_interfaces
from tests.unit.sidecar.oracle import attribute, done, error, message


def address(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def link_message(index: int, name: str, flags: int) -> bytes:
    return message(struct.pack("=BxHiII", 0, 1, index, flags, 0) + attribute(3, name.encode() + b"\0"), kind=16)


def address_message(index: int, *attributes: tuple[int, bytes]) -> bytes:
    body = struct.pack("=BBBBI", 2, 24, 0, 0, index)
    return message(body + b"".join(attribute(kind, payload) for kind, payload in attributes), kind=20)


def route_message(index: int) -> bytes:
    return message(bytes(12) + attribute(4, struct.pack("=I", index)), kind=24)


def ethtool_command(speed: int, high: int) -> bytes:
    return struct.pack("=3IH", 1, 0, 0, speed) + bytes(14) + struct.pack("=H", high) + bytes(14)


def test_links() -> None:
    data = link_message(1, "lo", IFF_RUNNING | IFF_LOOPBACK) + link_message(7, "eth0", 0) + done()
    assert parse_links(data) == {
        1: Link(1, "lo", running=True, loopback=True),
        7: Link(7, "eth0", running=False, loopback=False),
    }


def test_addresses_are_the_local_ones() -> None:
    peer, own, six = address("192.0.2.9"), address("192.0.2.1"), address("fd00::1")
    data = address_message(3, (1, peer), (2, own)) + address_message(4, (1, six)) + address_message(5) + done()
    assert parse_addresses(data) == {own: 3, six: 4}


def test_route_and_no_route() -> None:
    assert parse_route(route_message(4)) == 4
    assert parse_route(message(bytes(12), kind=24)) is None
    with pytest.raises(NetlinkError) as caught:
        parse_route(error(errno.ENETUNREACH))
    assert caught.value.code == errno.ENETUNREACH


@pytest.mark.parametrize(
    ("speed", "high", "expected"),
    [
        (1000, 0, 125_000_000),
        (10_000, 0, 1_250_000_000),
        (0x86A0, 1, 12_500_000_000),
        (0xFFFF, 0, None),
        (0xFFFF, 0xFFFF, None),
        (0, 0, None),
    ],
)
def test_speed(speed: int, high: int, expected: int | None) -> None:
    assert parse_ethtool_command(ethtool_command(speed, high)) == expected


@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=20)), max_size=6, unique_by=lambda pair: pair[0]))
def test_attributes_round_trip(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(attribute(kind, payload) for kind, payload in pairs)
    assert parse_attributes(data) == dict(pairs)


VALID = link_message(1, "lo", IFF_RUNNING) + address_message(3, (2, b"1234")) + route_message(4) + done()


@given(
    st.binary(max_size=200)
    | st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)).map(
        lambda pair: VALID[: pair[0]] + bytes([pair[1]]) + VALID[pair[0] + 1 :]
    )
)
def test_garbage_raises_nothing_but_the_declared_exception(data: bytes) -> None:
    for parse in (parse_links, parse_addresses, parse_route, lambda raw: list(parse_messages(raw))):
        try:
            parse(data)
        except NetlinkError:
            continue


def test_this_machine() -> None:
    loopback = address("127.0.0.1")
    seen = read_interfaces([(loopback, loopback), (loopback, address("192.0.2.77"))])
    index = socket.if_nametoindex("lo")
    assert seen.links[index].loopback
    assert {link.index: link.name for link in seen.links.values()} == dict(socket.if_nameindex())
    assert seen.addresses[loopback] == index
    assert seen.routes[loopback, loopback] == index


def test_route_request_layout() -> None:
    request = route_request(address("192.0.2.1"), address("192.0.2.2"))
    assert struct.unpack_from("=IHH", request) == (len(request), 26, 1)
    assert request[16:19] == bytes([socket.AF_INET, 32, 32])


FAST = Link(2, "ib0", running=True, loopback=False, speed=12_500_000_000)
SLOW = Link(3, "eth0", running=True, loopback=False, speed=125_000_000)
DOWN = Link(4, "eth1", running=False, loopback=False, speed=50_000_000_000)
LOOPBACK = Link(1, "lo", running=True, loopback=True)
LINKS = {link.index: link for link in (FAST, SLOW, DOWN, LOOPBACK)}


def test_the_wrong_interface_in_one_direction_only() -> None:
    slow_end, peer = address("192.0.2.1"), address("198.51.100.2")
    seen = Interfaces(LINKS, {slow_end: 3}, {(slow_end, peer): 2})
    assert judge_interfaces({"output": {(slow_end, peer)}}, seen) == (
        InterfaceSample("output", "receive", ("eth0",), up=True, speed=125_000_000),
        InterfaceSample("output", "send", ("ib0",), up=True, speed=12_500_000_000),
    )
    assert fastest(seen) == 12_500_000_000


def test_the_slowest_counts_and_one_without_a_carrier_is_down() -> None:
    ends, peer = [address(f"192.0.2.{number}") for number in range(3)], address("198.51.100.2")
    seen = Interfaces(LINKS, {ends[0]: 2, ends[1]: 3, ends[2]: 4}, {})
    (found,) = judge_interfaces({"http": {(end, peer) for end in ends}}, seen)
    assert found == InterfaceSample("http", "receive", ("eth0", "eth1", "ib0"), up=False, speed=125_000_000)


def test_what_stays_on_this_host_has_no_interface() -> None:
    loopback = address("127.0.0.1")
    seen = Interfaces(LINKS, {loopback: 1}, {(loopback, loopback): 1})
    assert judge_interfaces({"http": {(loopback, loopback)}}, seen) == ()
    assert fastest(Interfaces({1: LOOPBACK})) is None
