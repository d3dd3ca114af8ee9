"""What is remembered of single sockets between two scans, by their cookies: sorted arrays, no object per socket.

A cookie names one socket for the life of the host; it is never used again (net/core/sock_diag.c).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]


def find(sorted_cookies: Column, wanted: Column) -> tuple[Column, Column]:
    """Place of each wanted cookie, and whether it is there (places of others mean nothing)."""
    if not len(sorted_cookies):
        return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), bool)
    places = np.searchsorted(sorted_cookies, wanted)
    places[places == len(sorted_cookies)] = 0
    return places, sorted_cookies[places] == wanted


class Since:
    """Since when each socket has held a value that never went down."""

    def __init__(self) -> None:
        self._cookies = np.zeros(0, np.uint64)
        self._values = np.zeros(0, np.uint64)
        self._since = np.zeros(0)

    def update(self, cookies: Column, values: Column, now: float) -> Column:
        """The sockets that hold a value now; returns since when each has. One that is left out starts anew."""
        if not len(cookies):
            self._cookies, self._values, self._since = self._cookies[:0], self._values[:0], self._since[:0]
            return np.zeros(0)
        order = np.argsort(cookies)
        current, held = cookies[order], values[order].astype(np.uint64)
        places, known = find(self._cookies, current)
        since = np.full(len(current), now)
        kept = np.flatnonzero(known)
        kept = kept[held[kept] >= self._values[places[kept]]]
        since[kept] = self._since[places[kept]]
        self._cookies, self._values, self._since = current, held, since
        answer = np.empty_like(since)
        answer[order] = since
        return answer

    def restart(self, now: float) -> None:
        """Take all as seen first just now: nobody looked for a while."""
        self._since[:] = now


class Increments:
    """What the counters of each socket added since the last scan.

    A socket that one scan missed is remembered until the next: the kernel walks its table without a lock, and a socket
    that comes back must not count twice.
    """

    def __init__(self, size: int) -> None:
        """``size`` counters for each socket."""
        self._cookies = np.zeros(0, np.uint64)
        self._values = np.zeros((0, size), np.uint64)
        self._missed = np.zeros(0, bool)

    def update(self, cookies: Column, values: Column) -> Column:
        """Counters now, shape (sockets, size); returns what each added, of a new socket all that it counted.

        A socket that comes twice in one scan counts once.
        """
        added = np.zeros(values.shape, np.uint64)
        current, first = np.unique(cookies, return_index=True)
        counted = values[first].astype(np.uint64)
        places, known = find(self._cookies, current)
        last = np.zeros_like(counted)
        last[known] = self._values[places[known]]
        added[first] = np.where(counted >= last, counted - last, 0)
        self._keep(current, np.maximum(counted, last), places[known])
        return added

    def _keep(self, cookies: Column, values: Column, seen: Column) -> None:
        unseen = ~self._missed
        unseen[seen] = False
        kept = np.concatenate([cookies, self._cookies[unseen]])
        order = np.argsort(kept)
        missed = np.concatenate([np.zeros(len(cookies), bool), np.ones(int(unseen.sum()), bool)])
        self._cookies, self._missed = kept[order], missed[order]
        self._values = np.concatenate([values, self._values[unseen]])[order]
