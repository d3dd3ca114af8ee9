"""Turns connection tracking on in the stack's network and sends datagrams of ever new ports until the table is full."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alerts.lab import repeated, require_own_network, run
from enginescope.drill import DrillError
from enginescope.probe import samples, total
from enginescope.stack import Stack

NEEDS: Final = ("namespace", "nft")
_MOST: Final = 600_000
"""Entries that a drill makes; each takes about 300 bytes of kernel memory."""
_SHARE: Final = 0.97
_AT_ONCE: Final = 4000
_PORTS: Final = 64000
_FIRST_PORT: Final = 1024
_LIMIT: Final = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_TABLE: Final = "table ip drill {\nchain track {\ntype filter hook output priority 0;\nct state invalid counter\n}\n}\n"
_NETLINK_NETFILTER: Final = 12
# struct nlmsghdr and struct nfgenmsg: IPCTNL_MSG_CT_DELETE of NFNL_SUBSYS_CTNETLINK without a tuple flushes the table.
_FLUSH: Final = struct.pack("=IHHIIBBH", 20, 1 << 8 | 2, 1 | 4, 1, 0, socket.AF_INET, 0, 0)


@contextmanager
def inject(stack: Stack) -> Iterator[int]:
    """Fill the table; tracking ends and the table is emptied on exit."""
    require_own_network(stack)
    wanted = _wanted()
    run("nft", "-f", "-", text=_TABLE)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind(("127.0.0.1", 0))
            stamp = time.time_ns()
            for number in range(wanted):
                _send(sender, number)
            # Those that are not answered are forgotten after 30 seconds, so they are sent again and again.
            rounds = [range(first, min(first + _AT_ONCE, wanted)) for first in range(0, wanted, _AT_ONCE)]
            with repeated(lambda turn: _send_all(sender, rounds[turn % len(rounds)]), 5):
                yield stamp
    finally:
        run("nft", "delete", "table", "ip", "drill")
        _flush()


def evidence(stack: Stack) -> bool:
    """The sidecar sees a table that is nine tenths full."""
    found = samples(stack.ports["sidecar"])
    entries, limit = (total(found, f"enginescope_conntrack_{name}") for name in ("entries", "limit"))
    return entries is not None and limit is not None and entries > 0.9 * limit


def _wanted() -> int:
    try:
        limit = int(_LIMIT.read_text())
    except OSError as error:
        raise DrillError(f"this kernel tracks no connections: {_LIMIT} cannot be read ({error.strerror})") from error
    if limit > _MOST:
        raise DrillError(f"the table holds {limit} entries, and a drill makes at most {_MOST}")
    return int(limit * _SHARE)


def _send_all(sender: socket.socket, numbers: range) -> None:
    for number in numbers:
        _send(sender, number)


def _send(sender: socket.socket, number: int) -> None:
    """One datagram to a loopback address and port of its own; nobody listens there."""
    sender.sendto(b"", (f"127.1.0.{1 + number // _PORTS}", _FIRST_PORT + number % _PORTS))


def _flush() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
        netlink.settimeout(5)
        netlink.send(_FLUSH)
        netlink.recv(4096)
