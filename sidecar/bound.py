"""Ports that the engine holds and does not listen on: its clients are refused, and nothing else says why."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sidecar.collectors import NotVisibleError
from sidecar.kernel.inet_diag import read_bound, shows_bound
from sidecar.kernel.netlink import DiagSocket
from sidecar.snapshot import BoundSample


class BoundPorts:
    """Follows the ports that have a role."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._shown: bool | None = None

    def collect(
        self, own: DiagSocket, diag: DiagSocket, roles: Mapping[int, str], listening: Collection[int], now: float
    ) -> tuple[BoundSample, ...]:
        """What is bound to each port.

        Args:
            own: the socket of the sidecar's own namespace, to ask once whether this kernel tells.
            diag: the socket of the engine's.
            roles: port -> role.
            listening: the ports that somebody listens on.
            now: monotonic seconds.

        Raises:
            NotVisibleError: this kernel does not tell.
            NetlinkError: a dump failed.
        """
        if self._shown is None:
            self._shown = shows_bound(own)
        if not self._shown:
            raise NotVisibleError("Linux before 6.8 does not show sockets that are bound and do not listen")
        vacant = read_bound(diag, [port for port in roles if port not in listening])
        self._since = {port: self._since.get(port, now) for port, sockets in vacant.items() if sockets}
        return tuple(
            BoundSample(port, role, vacant.get(port, 0), now - self._since.get(port, now))
            for port, role in roles.items()
        )
