"""Proofs that a decoy happened, each from one metric of the sidecar."""

from __future__ import annotations

import time
from collections.abc import Callable

from enginescope.probe import samples, total
from enginescope.stack import Stack

Proof = Callable[[], str | None]


def reached(stack: Stack, name: str, level: float, **labels: str) -> Proof:
    """The metric is at a level or above."""

    def proof() -> str | None:
        value = read(stack, name, **labels)
        return f"enginescope_{name} {value:.0f}" if value is not None and value >= level else None

    return proof


def grew(stack: Stack, name: str, by: float, **labels: str) -> Proof:
    """The counter is higher than now by that much."""
    before = read(stack, name, **labels) or 0.0

    def proof() -> str | None:
        growth = (read(stack, name, **labels) or 0.0) - before
        return f"enginescope_{name} grew by {growth:.0f}" if growth >= by else None

    return proof


def stood_still(stack: Stack, name: str, seconds: float) -> Proof:
    """The counter was there and did not move for so long."""
    seen, since = read(stack, name), time.monotonic()

    def proof() -> str | None:
        nonlocal seen, since
        if (value := read(stack, name)) != seen or value is None:
            seen, since = value, time.monotonic()
        still = time.monotonic() - since
        return f"enginescope_{name} stood still for {still:.0f} s" if still >= seconds else None

    return proof


def read(stack: Stack, name: str, **labels: str) -> float | None:
    """The sum of what has these labels; None when there is none.

    Raises:
        ProbeError: the sidecar does not answer.
    """
    return total(samples(stack.ports["sidecar"]), f"enginescope_{name}", **labels)
