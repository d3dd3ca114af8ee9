"""Half-open connections without a second host: SYNs from a tun device behind which nobody answers.

Needs root in a network namespace of its own. Sources: netdevice(7), linux/if_tun.h, RFC 791, RFC 9293.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from typing import Final

ADDRESS: Final = "10.9.9.1"
_NOBODY: Final = "10.9.9.2"
_DEVICE: Final = b"tun0"
_FIRST_PORT: Final = 1024
_SYN, _ACK = 0x02, 0x10
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x891C, 0x8914, 1


def open_tun() -> int:
    """A tun device with ``ADDRESS``, up; packets written to the descriptor come in through it."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", _DEVICE, _IFF_TUN_NO_PI))
    with socket.socket() as control:
        for request, address in ((_SIOCSIFADDR, ADDRESS), (_SIOCSIFNETMASK, "255.255.255.0")):
            packed = struct.pack("16sHH4s8x", _DEVICE, socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, request, packed)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", _DEVICE, _IFF_UP))
    return tun


def send_syns(tun: int, port: int, count: int) -> None:
    """Ask for connections to a port of ``ADDRESS`` and never answer its SYN-ACKs."""
    for number in range(count):
        os.write(tun, _segment(_FIRST_PORT + number, port, 1, 0, _SYN))


def send_last_acks(tun: int, port: int, count: int, seconds: float = 10) -> None:
    """Answer the SYN-ACKs of ``count`` connections begun by ``send_syns``."""
    answered: set[int] = set()
    while len(answered) < count:
        readable, _, _ = select.select([tun], [], [], seconds)
        assert readable, f"{len(answered)} SYN-ACKs of {count} within {seconds} s"
        packet = os.read(tun, 2048)
        if packet[0] != 0x45 or packet[9] != socket.IPPROTO_TCP:
            continue  # IPv6 looks for its neighbours here as well
        own_port, peer_port, sequence = struct.unpack_from("!HHI", packet, 20)
        if own_port == port and packet[33] == _SYN | _ACK and peer_port not in answered:
            answered.add(peer_port)
            os.write(tun, _segment(peer_port, port, 2, sequence + 1, _ACK))


def _segment(source_port: int, port: int, sequence: int, acknowledged: int, flags: int) -> bytes:
    source, destination = socket.inet_aton(_NOBODY), socket.inet_aton(ADDRESS)
    acknowledged &= 0xFFFFFFFF
    segment = struct.pack("!HHIIBBHHH", source_port, port, sequence, acknowledged, 5 << 4, flags, 1000, 0, 0)
    pseudo = source + destination + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(segment))
    segment = segment[:16] + struct.pack("!H", _checksum(pseudo + segment)) + segment[18:]
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 1, 0, 64, socket.IPPROTO_TCP, 0, source, destination)
    return header[:10] + struct.pack("!H", _checksum(header)) + header[12:] + segment


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
