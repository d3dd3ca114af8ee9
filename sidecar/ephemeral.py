"""Local ports taken per destination: they run out for one source and destination at a time, and nothing counts it.

The limit is on (local address, peer address, peer port). TIME_WAIT counts, and has no owner; therefore all outgoing
connections of the namespace are looked at, whoever made them.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from sidecar.facts import EphemeralSample
from sidecar.kernel.endpoints import ENDPOINTS, mix, plain, to_bytes
from sidecar.kernel.inet_diag import BODY_BYTES, LONG_ROWS, TcpState, tcp_request
from sidecar.kernel.netlink import TCPDIAG_GETSOCK, DiagSocket, Run
from sidecar.kernel.sysctl import PortRange

_OPERATION: Final = struct.Struct("=BBH")  # struct inet_diag_bc_op: code, yes, no
_LOCAL_PORT_AT_LEAST: Final = 2
_LOCAL_PORT_AT_MOST: Final = 3
_BYTECODE_ATTRIBUTE: Final = 1
_PORT_BITS: Final = np.uint64(0xFFFF)
_ADDRESSES: Final = 1 << 16


def range_request(states: int, ports: PortRange) -> bytes:
    """A dump request for sockets whose local port is in the range; in-kernel, so that no others are copied."""
    program = _OPERATION.pack(_LOCAL_PORT_AT_LEAST, 8, 20) + _OPERATION.pack(0, 0, ports.low)
    program += _OPERATION.pack(_LOCAL_PORT_AT_MOST, 8, 12) + _OPERATION.pack(0, 0, ports.high)
    return tcp_request(states) + struct.pack("=HH", 4 + len(program), _BYTECODE_ATTRIBUTE) + program


class Destinations:
    """Counts distinct local ports by (local address, peer address, peer port)."""

    def __init__(self, ports: PortRange, listening: Collection[int]) -> None:
        """Make an empty table; connections of ``listening`` ports came in and are left out."""
        self._ports = ports
        self._counted = np.zeros(_ADDRESSES, bool)
        self._counted[ports.low : ports.high + 1] = True
        self._counted[[*ports.reserved, *listening]] = False
        self._keys: list[npt.NDArray[np.uint64]] = []
        self._peers: dict[int, tuple[bytes, int]] = {}

    def add(self, run: Run) -> None:
        """Take in one run."""
        rows = run.column(ENDPOINTS)
        rows = rows[self._counted[rows["port"]]]
        peers = plain(rows["peer"])
        groups = mix(plain(rows["local"]), peers, rows["peer_port"]) & ~_PORT_BITS
        self._keys.append(groups | rows["port"].astype(np.uint64))
        unique, first, counts = np.unique(groups, return_index=True, return_counts=True)
        for place in np.flatnonzero(counts > 1).tolist():
            row = int(first[place])
            self._peers.setdefault(int(unique[place]), (to_bytes(peers[row]), int(rows["peer_port"][row])))

    def merge(self, other: Destinations) -> None:
        """Add a table of the same range."""
        self._keys += other._keys
        self._peers |= other._peers

    def worst(self) -> EphemeralSample:
        """The destination that takes most ports; it is named when one run had two of its connections."""
        keys = np.unique(np.concatenate(self._keys)) if self._keys else np.zeros(0, np.uint64)
        groups, counts = np.unique(keys & ~_PORT_BITS, return_counts=True)
        ports = self._ports
        if not len(groups):
            return EphemeralSample(0, ports.size, ports.low, ports.high)
        place = int(counts.argmax())
        address, port = self._peers.get(int(groups[place]), (b"", 0))
        return EphemeralSample(int(counts[place]), ports.size, ports.low, ports.high, _text(address), port)


def _text(address: bytes) -> str:
    return str(ipaddress.ip_address(address)) if address else ""


def read_worst_destination(diag: DiagSocket, ports: PortRange, listening: Collection[int]) -> EphemeralSample:
    """The destination towards which most local ports of the range are taken.

    Raises:
        NetlinkError: a dump failed.
    """
    found = Destinations(ports, listening)
    for states in (LONG_ROWS & ~(1 << TcpState.CLOSED), 1 << TcpState.TIME_WAIT):
        request = range_request(states, ports)
        found.merge(diag.dump(TCPDIAG_GETSOCK, request, BODY_BYTES, lambda: Destinations(ports, listening)))
    return found.worst()
