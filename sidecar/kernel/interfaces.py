"""Network interfaces of this thread's namespace: addresses, routes and carrier by rtnetlink, speed by ethtool.

Not from /sys/class/net, which shows the namespace that mounted it, whatever namespace the reader has entered.
Sources: rtnetlink(7), linux/rtnetlink.h, linux/if_link.h, linux/ethtool.h (ETHTOOL_GSET, which needs no privilege).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.kernel.netlink import NetlinkError

IFF_RUNNING: Final = 0x40
IFF_LOOPBACK: Final = 0x8
_NETLINK_ROUTE: Final = 0
_ERROR, _DONE = 2, 3
_NEWLINK, _GETLINK, _NEWADDR, _GETADDR, _NEWROUTE, _GETROUTE = 16, 18, 20, 22, 24, 26
_REQUEST: Final = 0x1
_DUMP: Final = 0x301
_IFNAME, _ADDRESS, _LOCAL = 3, 1, 2
_DST, _SRC, _OIF = 1, 2, 4
_HEADER: Final = struct.Struct("=IHHII")  # nlmsg_len, nlmsg_type, nlmsg_flags, nlmsg_seq, nlmsg_pid
_ATTRIBUTE: Final = struct.Struct("=HH")
_LINK: Final = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_ADDR: Final = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix length, flags, scope, index
_ROUTE: Final = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_CODE: Final = struct.Struct("=i")
_INDEX: Final = struct.Struct("=I")
_TYPE_MASK: Final = 0x3FFF
_RECEIVE_BYTES: Final = 1 << 18
_RECEIVE_SECONDS: Final = 5.0
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GSET: Final = 0x1
_COMMAND: Final = struct.Struct("=I2IH2B4x2IH2x12x")  # struct ethtool_cmd; speed at 12, speed_hi at 28
_UNKNOWN_SPEEDS: Final = (0, 0xFFFF, 0xFFFFFFFF)
_BYTES_OF_A_MEGABIT: Final = 125_000

Pair = tuple[bytes, bytes]
"""Local and peer address of a connection, 4 or 16 bytes each."""


@dataclass(frozen=True, slots=True)
class Link:
    """One interface."""

    index: int
    name: str
    running: bool
    """Administratively up and with a carrier."""
    loopback: bool
    speed: int | None = None
    """Bytes a second; None for what has none (loopback, most virtual devices)."""


@dataclass(frozen=True, slots=True)
class Interfaces:
    """The interfaces of a namespace, and the ways that some connections take through them."""

    links: dict[int, Link] = field(default_factory=dict)
    addresses: dict[bytes, int] = field(default_factory=dict)
    """Address (4 or 16 bytes) -> index of the interface that has it."""
    routes: dict[Pair, int] = field(default_factory=dict)
    """Local and peer address -> index of the interface that packets to the peer leave by."""


def parse_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and payload of each message; ends at NLMSG_DONE, which is given too.

    Raises:
        NetlinkError: malformed bytes, or the kernel reported an error.
    """
    offset = 0
    while len(data) - offset >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if not _HEADER.size <= length <= len(data) - offset:
            raise NetlinkError(f"netlink message at byte {offset} claims {length} of {len(data) - offset} bytes")
        payload = data[offset + _HEADER.size : offset + length]
        if kind in (_ERROR, _DONE) and len(payload) >= _CODE.size:
            code = -_CODE.unpack_from(payload)[0]
            if code > 0:
                raise NetlinkError(f"the kernel refused a route request: error {code}", code)
        yield kind, payload
        if kind == _DONE:
            return
        offset += length + -length % 4


def parse_attributes(payload: bytes) -> dict[int, bytes]:
    """Attribute type -> its bytes.

    Raises:
        NetlinkError: an attribute runs out of the message.
    """
    found = {}
    offset = 0
    while len(payload) - offset >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if not _ATTRIBUTE.size <= size <= len(payload) - offset:
            raise NetlinkError(f"attribute {kind} claims {size} of {len(payload) - offset} bytes")
        found[kind & _TYPE_MASK] = payload[offset + _ATTRIBUTE.size : offset + size]
        offset += size + -size % 4
    return found


def parse_links(data: bytes) -> dict[int, Link]:
    """Interfaces by index from RTM_NEWLINK messages, without their speed.

    Raises:
        NetlinkError: malformed bytes, or the kernel reported an error.
    """
    found = {}
    for kind, payload in parse_messages(data):
        if kind == _NEWLINK and len(payload) >= _LINK.size:
            _, _, index, flags, _ = _LINK.unpack_from(payload)
            name = parse_attributes(payload[_LINK.size :]).get(_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
            found[index] = Link(index, name, bool(flags & IFF_RUNNING), bool(flags & IFF_LOOPBACK))
    return found


def parse_addresses(data: bytes) -> dict[bytes, int]:
    """Local addresses from RTM_NEWADDR messages and the index of their interface.

    Raises:
        NetlinkError: malformed bytes, or the kernel reported an error.
    """
    found = {}
    for kind, payload in parse_messages(data):
        if kind == _NEWADDR and len(payload) >= _ADDR.size:
            attributes = parse_attributes(payload[_ADDR.size :])
            address = attributes.get(_LOCAL) or attributes.get(_ADDRESS)  # on a point-to-point link they differ
            if address:
                found[address] = _ADDR.unpack_from(payload)[4]
    return found


def parse_route(data: bytes) -> int | None:
    """Index of the outgoing interface in an RTM_NEWROUTE message; None when it names none.

    Raises:
        NetlinkError: malformed bytes, or the kernel reported an error (such as no route).
    """
    for kind, payload in parse_messages(data):
        if kind == _NEWROUTE:
            index = parse_attributes(payload[_ROUTE.size :]).get(_OIF, b"")
            return int(_INDEX.unpack(index)[0]) if len(index) == _INDEX.size else None
    return None


def parse_ethtool_command(raw: bytes) -> int | None:
    """Bytes a second from a struct ethtool_cmd; None when the driver does not know, or it is not one."""
    if len(raw) != _COMMAND.size:
        return None
    fields = _COMMAND.unpack(raw)
    megabits = fields[3] | fields[8] << 16
    return None if megabits in _UNKNOWN_SPEEDS else megabits * _BYTES_OF_A_MEGABIT


def read_interfaces(pairs: Sequence[Pair]) -> Interfaces:
    """The interfaces of this thread's namespace, and the routes of these connections.

    Raises:
        NetlinkError, OSError: the kernel refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as route:
        route.settimeout(_RECEIVE_SECONDS)
        links = parse_links(_dump(route, _GETLINK, _LINK.pack(0, 0, 0, 0, 0)))
        addresses = parse_addresses(_dump(route, _GETADDR, _ADDR.pack(0, 0, 0, 0, 0)))
        routes = {pair: index for pair in pairs if (index := _find_route(route, *pair)) is not None}
    return Interfaces(_with_speeds(links), addresses, routes)


def _dump(route: socket.socket, kind: int, body: bytes) -> bytes:
    route.send(_HEADER.pack(_HEADER.size + len(body), kind, _DUMP, 1, 0) + body)
    received = b""
    while True:
        part = route.recv(_RECEIVE_BYTES)
        received += part
        if not part or any(kind == _DONE for kind, _ in parse_messages(part)):
            return received


def route_request(local: bytes, peer: bytes) -> bytes:
    """An RTM_GETROUTE message for packets between these addresses."""
    family = socket.AF_INET if len(peer) == 4 else socket.AF_INET6
    bits = len(peer) * 8
    body = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
    for kind, address in ((_DST, peer), (_SRC, local)):
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address), kind) + address
    return _HEADER.pack(_HEADER.size + len(body), _GETROUTE, _REQUEST, 1, 0) + body


def _find_route(route: socket.socket, local: bytes, peer: bytes) -> int | None:
    route.send(route_request(local, peer))
    try:
        return parse_route(route.recv(_RECEIVE_BYTES))
    except NetlinkError as error:
        if error.code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL):
            return None
        raise


def _with_speeds(links: dict[int, Link]) -> dict[int, Link]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        return {
            index: Link(index, link.name, link.running, link.loopback, None if link.loopback else _speed(control, link))
            for index, link in links.items()
        }


def _speed(control: socket.socket, link: Link) -> int | None:
    command = ctypes.create_string_buffer(_INDEX.pack(_ETHTOOL_GSET), _COMMAND.size)
    # struct ifreq: the name, and a pointer where its union begins
    request = struct.pack("16sP16x", link.name.encode()[:15], ctypes.addressof(command))
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:  # EOPNOTSUPP: no such thing as a speed
        return None
    return parse_ethtool_command(command.raw)
