"""What TCP_INFO and socket memory tell about each group of connections, as columns over all groups."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.kernel.connection_rows import APP_LIMITED, NEVER_SENT, ConnectionRows
from sidecar.kernel.inet_diag import TcpState

Column = npt.NDArray[Any]
Facts = dict[str, list[Any]]

COMPLETE: Final = (TcpState.ESTABLISHED, TcpState.CLOSE_WAIT)
"""States in which a socket without an inode is one that nobody accepted yet; in any other it is an orphan."""
_SUMS: Final = ("receive_memory", "send_memory", "unacked", "unsent")
_NEEDS: Final = {
    "unsent": "unsent",
    "network_limited": "delivery_rate",
    "delivery_min": "delivery_rate",
    "delivery_median": "delivery_rate",
    "unanswered": "bytes_sent",
    "unanswered_oldest": "bytes_sent",
    "never_answered": "bytes_sent",
    "silent": "bytes_sent",
    "overdue": "bytes_sent",
}
"""Fact -> the TCP_INFO field without which it is not known."""


def detail_by_group(rows: ConnectionRows, busy: Column, groups: Column, fields: frozenset[str]) -> Facts:
    """Values of the fields of ``TcpDetail``, the counters excepted, for each group.

    Orphans are left out: what a closed socket still sends is nobody's any more.

    Args:
        rows: one detailed scan.
        busy: its rows with something going on.
        groups: the group of each of those.
        fields: the TCP_INFO fields that the kernel has.
    """
    live = np.flatnonzero((busy["inode"] != 0) | np.isin(busy["state"], COMPLETE))
    busy, groups = busy[live], groups[live]
    found: Facts = {name: _sums(busy[name], groups, rows.groups) for name in _SUMS}
    found |= _round_trips(rows) | _delivery(busy, groups, rows.groups) | _unanswered(busy, groups, rows.groups)
    found["silent"] = [None if value == NEVER_SENT else value / 1000 for value in rows.silent.tolist()]
    found["overdue"] = rows.overdue.tolist()
    return {name: values for name, values in found.items() if _NEEDS.get(name) in {None, *fields}}


def _sums(values: Column, groups: Column, size: int) -> list[int]:
    """Exact below 2**53."""
    return list(np.bincount(groups, values, size).astype(np.int64).tolist())


def _round_trips(rows: ConnectionRows) -> Facts:
    established = rows.counts[:, TcpState.ESTABLISHED].sum(axis=1).tolist()
    total = rows.rtt[:, TcpState.ESTABLISHED].sum(axis=1).tolist()
    longest = rows.rtt_max[:, TcpState.ESTABLISHED].max(axis=1, initial=0).tolist()
    return {
        "rtt_mean": [one / count / 1e6 if count else None for one, count in zip(total, established, strict=True)],
        "rtt_max": [one / 1e6 if count else None for one, count in zip(longest, established, strict=True)],
    }


def _delivery(busy: Column, groups: Column, size: int) -> Facts:
    """Of connections that have something to send and are held back by the network, not by the application."""
    rate = busy["delivery_rate"]
    held = (busy["unacked"] > 0) | (busy["unsent"] > 0)
    held &= (busy["flags"] & APP_LIMITED == 0) & (rate > 0)
    least: list[int | None] = [None] * size
    median: list[float | None] = [None] * size
    for group in np.unique(groups[held]).tolist():
        rates = rate[held & (groups == group)]
        least[group], median[group] = int(rates.min()), float(np.median(rates))
    limited = list(np.bincount(groups[held], minlength=size).tolist())
    return {"network_limited": limited, "delivery_min": least, "delivery_median": median}


def _unanswered(busy: Column, groups: Column, size: int) -> Facts:
    """A request that follows an answer within one tick of the kernel's clock is not seen."""
    waiting = (busy["bytes_sent"] == 0) | (busy["last_received"] < busy["last_sent"])
    waiting &= (busy["bytes_received"] > 0) & (busy["state"] == TcpState.ESTABLISHED)
    never = waiting & (busy["bytes_sent"] == 0) & (busy["inode"] != 0)
    oldest = np.zeros(size)
    np.maximum.at(oldest, groups[waiting], busy["last_received"][waiting])
    return {
        "unanswered": list(np.bincount(groups[waiting], minlength=size).tolist()),
        "unanswered_oldest": list((oldest / 1000).tolist()),
        "never_answered": list(np.bincount(groups[never], minlength=size).tolist()),
    }
