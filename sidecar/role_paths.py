"""Which interfaces the connections of each role go through, judged for each direction apart.

What comes in is for the interface that owns the local address; what goes out leaves by the route to the peer, which
may be another one: a worker bound to the slow network can send by the fast one and receive by the slow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.facts import InterfaceSample
from sidecar.kernel.endpoints import ENDPOINTS, mix, plain, to_bytes
from sidecar.kernel.inet_diag import BODY_BYTES, TcpState, tcp_request
from sidecar.kernel.interfaces import Interfaces, Link, Pair
from sidecar.kernel.netlink import TCPDIAG_GETSOCK, DiagSocket, Run

_MOST_PAIRS: Final = 32
"""Pairs of addresses looked at for one role: each costs a route lookup."""
_MOST_SOCKETS: Final = 4


class RolePaths:
    """Collects pairs of local and peer address by role, from both ends of its connections."""

    def __init__(self, roles: Mapping[int, str]) -> None:
        self._names = sorted(set(roles.values()))
        self._role_of_port = np.zeros(65536, np.uint8)
        for port, role in roles.items():
            self._role_of_port[port] = self._names.index(role) + 1
        self.pairs: dict[str, set[Pair]] = {}
        self.inodes: dict[str, set[int]] = {}
        """Role -> sockets of a few of its connections."""

    def add(self, run: Run) -> None:
        """Take in one run."""
        rows = run.column(ENDPOINTS)
        own, peers = self._role_of_port[rows["port"]], self._role_of_port[rows["peer_port"]]
        role = np.where(own > 0, own, peers)
        local, peer = plain(rows["local"]), plain(rows["peer"])
        _, first = np.unique(mix(local, peer, role), return_index=True)
        for row in first[role[first] > 0].tolist():
            found = self.pairs.setdefault(self._names[int(role[row]) - 1], set())
            if len(found) < _MOST_PAIRS:
                found.add((to_bytes(local[row]), to_bytes(peer[row])))
        self._sample_inodes(role, rows["inode"])

    def _sample_inodes(self, role: npt.NDArray[Any], inode: npt.NDArray[Any]) -> None:
        for place, name in enumerate(self._names, start=1):
            found = self.inodes.setdefault(name, set())
            found.update(inode[(role == place) & (inode > 0)][: _MOST_SOCKETS - len(found)].tolist())


def read_role_paths(diag: DiagSocket, roles: Mapping[int, str]) -> RolePaths:
    """Addresses of the established connections of the roles (port -> role).

    Raises:
        NetlinkError: the dump failed.
    """
    if not roles:
        return RolePaths(roles)
    request = tcp_request(1 << TcpState.ESTABLISHED, ports=list(roles), peer_ports=list(roles))
    return diag.dump(TCPDIAG_GETSOCK, request, BODY_BYTES, lambda: RolePaths(roles))


def judge_interfaces(pairs: Mapping[str, set[Pair]], seen: Interfaces) -> tuple[InterfaceSample, ...]:
    """The interfaces of each role and direction. What stays on this host has none and is left out."""
    found = []
    for role, own in sorted(pairs.items()):
        receiving = {seen.addresses.get(local) for local, _ in own}
        sending = {seen.routes.get(pair) for pair in own}
        for direction, indexes in (("receive", receiving), ("send", sending)):
            links = [seen.links[index] for index in indexes if index in seen.links]
            used = [link for link in links if not link.loopback]
            if used:
                found.append(_sample(role, direction, used))
    return tuple(found)


def _sample(role: str, direction: str, links: Iterable[Link]) -> InterfaceSample:
    ordered = sorted(links, key=lambda link: link.name)
    speeds = [link.speed for link in ordered if link.speed is not None]
    return InterfaceSample(
        role=role,
        direction=direction,
        names=tuple(link.name for link in ordered),
        up=all(link.running for link in ordered),
        speed=min(speeds, default=None),
    )


def fastest(seen: Interfaces) -> int | None:
    """Bytes a second of the fastest interface that has a carrier and tells its speed."""
    return max((link.speed for link in seen.links.values() if link.running and link.speed is not None), default=None)
