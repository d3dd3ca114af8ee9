"""The engine's connections from scan to scan, by port and direction: states, queues, and what TCP_INFO tells.

A plain scan has states and queues. A detailed one adds TCP_INFO and socket memory, at about a third more CPU time.
Ages are timed here, so that a sidecar that starts late tells too short an age and never too long a one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.connection_detail import COMPLETE, detail_by_group
from sidecar.cookies import Increments, Since
from sidecar.kernel.connection_rows import (
    DETAIL,
    NEVER_SENT,
    PROBE_TIMER,
    ConnectionRows,
    own_info_fields,
    read_rows,
)
from sidecar.kernel.inet_diag import TcpState
from sidecar.kernel.netlink import DiagSocket
from sidecar.roles import main_ports
from sidecar.snapshot import ConnectionSample, EndSample, TcpDetail

STUCK_SECONDS: Final = 5.0
_CLOSING_SECONDS: Final = 1.5
"""What an engine may take to close a connection that has been idle for long enough."""
MESSAGE_ROLES: Final = ("input", "output")
"""Roles whose connections have both ends in the engine."""
DIRECTIONS: Final = ("accepted", "connecting")
_NO_CONNECTION: Final = (TcpState.LISTEN, TcpState.CLOSED, TcpState.BOUND_INACTIVE)
_STATE_NAMES: Final = {state: state.name.lower() for state in TcpState if state not in _NO_CONNECTION}
_REMEMBERED_PORTS: Final = 64
_DETAIL_TOLD_SECONDS: Final = 10.0
_COUNTERS: Final = ("retransmits", "receiver_limited", "buffer_limited")

Column = npt.NDArray[Any]
Busy = tuple[Column, Column]


class Connections:
    """Scans the engine's connections and remembers single sockets by cookie from one scan to the next."""

    def __init__(self, info_fields: frozenset[str] | None = None, keep_alive: float | None = None) -> None:
        """Know nothing yet.

        Args:
            info_fields: the TCP_INFO fields of the kernel, by default of this one.
            keep_alive: seconds after which the engine closes an idle connection, where that is known.
        """
        self._fields = own_info_fields() if info_fields is None else info_fields
        self._idle_ms = NEVER_SENT if keep_alive is None else int((keep_alive + _CLOSING_SECONDS) * 1000)
        self._receive, self._send, self._close_wait = Since(), Since(), Since()
        self._increments = Increments(len(_COUNTERS))
        self._totals: dict[tuple[int, str], list[int]] = {}
        self._details: dict[tuple[int, str], TcpDetail] = {}
        self._detailed_at = float("-inf")

    def scan(
        self, diag: DiagSocket, ports: Mapping[int, str], now: float, detailed: bool
    ) -> tuple[ConnectionSample, ...]:
        """Dump the connections of these ports.

        Args:
            diag: the socket to dump with.
            ports: local port -> role. Of the message roles the connecting ends on this host count too.
            now: monotonic seconds.
            detailed: whether to ask for TCP_INFO and socket memory; else what the last such scan said is told again.

        Raises:
            NetlinkError: a dump failed.
        """
        peer_ports = [port for port, role in ports.items() if role in MESSAGE_ROLES]
        rows = read_rows(diag, list(ports), peer_ports, DETAIL if detailed else 0, self._idle_ms)
        return self.observe(rows, ports, now, detailed)

    def observe(
        self, rows: ConnectionRows, ports: Mapping[int, str], now: float, detailed: bool
    ) -> tuple[ConnectionSample, ...]:
        """Take in the rows of one scan."""
        busy, groups = rows.busy()
        queues = self._observe_queues(busy, groups, rows.groups, now)
        oldest = self._oldest_close_wait(busy, groups, rows.groups, now)
        if detailed:
            self._detailed_at = now
            self._observe_detail(rows, (busy, groups), ports)
        elif now - self._detailed_at > _DETAIL_TOLD_SECONDS:
            self._details = {}
        details = (self._details.get(key) for key in _keys(rows))
        ends = list(map(EndSample, _states(rows), *queues, details))
        return tuple(self._samples(rows, ports, ends, oldest))

    def restart_clocks(self, now: float) -> None:
        """Nobody looked for a while: a queue may have moved and filled again."""
        self._receive.restart(now)
        self._send.restart(now)

    def _observe_queues(self, busy: Column, groups: Column, size: int, now: float) -> list[list[int]]:
        owned = busy["inode"] != 0
        receive = busy["receive_queue"]
        unread = receive - ((busy["state"] == TcpState.CLOSE_WAIT) & (receive > 0))  # the FIN counts as a byte
        closed = busy["timer"] == PROBE_TIMER
        if "send_window" in self._fields:
            closed |= (busy["send_window"] == 0) & (busy["unsent"] > 0)
        found = (  # in the order of the fields of EndSample
            _largest(groups, receive * owned, size),
            _largest(groups, busy["send_queue"] * owned, size),
            _stuck(self._receive, busy, groups, owned * unread, size, now),
            _stuck(self._send, busy, groups, owned * busy["send_queue"], size, now),
            np.bincount(groups[closed & owned], minlength=size),
        )
        return [values.tolist() for values in found]

    def _oldest_close_wait(self, busy: Column, groups: Column, size: int, now: float) -> list[float]:
        """Seconds, by group."""
        leaked = np.flatnonzero((busy["state"] == TcpState.CLOSE_WAIT) & (busy["inode"] != 0))
        since = self._close_wait.update(busy["cookie"][leaked], np.zeros(len(leaked)), now)
        oldest = np.zeros(size)
        np.maximum.at(oldest, groups[leaked], now - since)
        return list(oldest.tolist())

    def _observe_detail(self, rows: ConnectionRows, picked: Busy, ports: Mapping[int, str]) -> None:
        told = main_ports(ports)
        counters = self._count(picked, rows, ports)
        facts = detail_by_group(rows, *picked, self._fields)
        self._details = {
            key: TcpDetail(**{name: values[group] for name, values in facts.items()}, **self._counted(counters[group]))
            for group, key in enumerate(_keys(rows))
            if key[0] in told and _is_told(*key, ports)
        }

    def _count(self, picked: Busy, rows: ConnectionRows, ports: Mapping[int, str]) -> list[list[int]]:
        """The counters of each group so far."""
        busy, groups = picked
        values = np.stack([busy[name].astype(np.uint64) for name in _COUNTERS], axis=1)
        counted = np.flatnonzero(values.any(axis=1))
        added = np.zeros((rows.groups, len(_COUNTERS)), np.uint64)
        np.add.at(added, groups[counted], self._increments.update(busy["cookie"][counted], values[counted]))
        self._forget({key for key in self._totals if key[0] not in ports})
        found = []
        for key, more in zip(_keys(rows), added.tolist(), strict=True):
            last = self._totals.get(key, [0] * len(_COUNTERS))
            found.append([before + new for before, new in zip(last, more, strict=True)])
            self._totals[key] = found[-1]
        return found

    def _counted(self, totals: list[int]) -> dict[str, Any]:
        retransmits, receiver_limited, buffer_limited = totals
        found = {
            "retransmits": retransmits,
            "receiver_limited": receiver_limited / 1e6,
            "buffer_limited": buffer_limited / 1e6,
        }
        return {name: value for name, value in found.items() if name in self._fields}

    def _forget(self, absent: set[tuple[int, str]]) -> None:
        """Counters of a port that is gone go on when it returns, unless ports come and go without end."""
        if len(absent) > _REMEMBERED_PORTS:
            for key in absent:
                del self._totals[key]

    def _samples(
        self, rows: ConnectionRows, ports: Mapping[int, str], ends: list[EndSample], oldest: list[float]
    ) -> Iterator[ConnectionSample]:
        size = len(ports)
        receive, send = _queued(rows.receive_bytes), _queued(rows.send_bytes)
        unaccepted = rows.counts[:size, COMPLETE, 0].sum(axis=1).tolist()
        leaked = rows.counts[:size, TcpState.CLOSE_WAIT, 1].tolist()
        for place, (port, role) in enumerate(ports.items()):
            directions = zip(DIRECTIONS, (ends[place], ends[place + size]), strict=True)
            yield ConnectionSample(
                port=port,
                role=role,
                states=ends[place].states,
                receive_bytes=receive[place] + receive[place + size],
                send_bytes=send[place] + send[place + size],
                unaccepted=unaccepted[place],
                close_wait_owned=leaked[place],
                close_wait_oldest=oldest[place],
                ends={name: end for name, end in directions if _is_told(port, name, ports)},
            )


def _keys(rows: ConnectionRows) -> list[tuple[int, str]]:
    """Port and direction of each group."""
    return [(port, direction) for direction in DIRECTIONS for port in rows.ports]


def _is_told(port: int, direction: str, ports: Mapping[int, str]) -> bool:
    return direction == DIRECTIONS[0] or ports[port] in MESSAGE_ROLES


def _states(rows: ConnectionRows) -> list[dict[str, int]]:
    counts = rows.counts.sum(axis=2)[:, list(_STATE_NAMES)].tolist()
    return [dict(zip(_STATE_NAMES.values(), own, strict=True)) for own in counts]


def _queued(queued: Column) -> list[int]:
    """By group, without orphans: what a closed socket still sends is nobody's queue any more."""
    return list((queued[:, :, 1].sum(axis=1) + queued[:, COMPLETE, 0].sum(axis=1)).tolist())


def _largest(groups: Column, values: Column, size: int) -> Column:
    largest = np.zeros(size, values.dtype)
    np.maximum.at(largest, groups, values)
    return largest


def _stuck(since: Since, busy: Column, groups: Column, values: Column, size: int, now: float) -> Column:
    """Sockets of each group whose queue was never empty and never got shorter for ``STUCK_SECONDS``."""
    full = np.flatnonzero(values)
    held = since.update(busy["cookie"][full], values[full], now)
    return np.bincount(groups[full][now - held >= STUCK_SECONDS], minlength=size)
