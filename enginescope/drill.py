"""What drills are made of: the contract of ``alerts/<failure>/drill.py``, and what those modules may use.

Each failure folder in ``alerts`` has a ``drill.py`` with a docstring that says what it breaks, and two functions:
``inject`` breaks it on entry and mends it on exit, whatever happens in between, and ``evidence`` says whether the
stack's own numbers show it. ``enginescope.drills`` runs them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec

from enginescope.pages import Page
from enginescope.probe import get, is_ready
from enginescope.stack import Stack

_POLL_SECONDS: Final = 0.1
HEALTHY_SECONDS: Final = 180.0
"""A restarted engine loads its model first."""

Report = Callable[[str], None]


class DrillError(Exception):
    """The drill cannot be done or did not end as it must; the message is one sentence."""


class Drill(Protocol):
    """What ``alerts/<failure>/drill.py`` offers.

    ``WHOLE_STACK = True`` says that its page names no engine, and that nothing else is watched meanwhile. ``MINUTES``
    says how much longer than others the failure takes with the rules as shipped; faster rules shorten that.
    ``NEEDS = "gpu"``, or a tuple of such words, says what not every stack has (``enginescope.drills.needs``).
    ``MAY_ALSO_PAGE = {"ProcessFrozen": "a sentence why"}`` names alerts that this failure causes as well. A page of any
    other alert fails the drill.
    """

    __doc__: str | None

    def inject(self, stack: Stack) -> AbstractContextManager[int]:
        """Break it; the value is ``time.time_ns()`` immediately before. Mend it on exit."""

    def evidence(self, stack: Stack) -> bool:
        """Whether the sidecar's metrics, or what stands above a dead sidecar, show it now."""


def new_pages(stack: Stack, since: int) -> list[Page]:
    """What the stack's page receiver got after that page.

    Raises:
        ProbeError: it does not answer.
    """
    return msgspec.json.decode(get(stack.ports["page_receiver"], f"/pages?since={since}"), type=list[Page])


def signal_group(stack: Stack, name: str, number: signal.Signals) -> None:
    """Signal one process of the stack with all its children.

    Raises:
        DrillError: it is not running as the leader of its process group.
    """
    pid = stack.pids.get(name, 0)
    try:
        if pid <= 1 or os.getpgid(pid) != pid:
            raise DrillError(f"the stack has no process group for {name} (pid {pid})")
        os.killpg(pid, number)
    except ProcessLookupError:
        raise DrillError(f"{name} (pid {pid}) is not running: is the stack still up?") from None


def signal_launcher(stack: Stack, number: signal.Signals) -> None:
    """Signal the engine's launcher alone, as an operator does; it knows what its processes must do.

    Raises:
        DrillError: it is not running.
    """
    try:
        os.kill(stack.pids["engine"], number)
    except (KeyError, ProcessLookupError):
        raise DrillError("the engine is not running: is the stack still up?") from None


def wait_healthy(stack: Stack) -> None:
    """Wait until the engine answers /health with 200.

    Raises:
        DrillError: it does not.
    """
    for _ in until(HEALTHY_SECONDS):
        if is_ready(stack.ports["engine"], "/health"):
            return
    raise DrillError(f"the engine did not answer /health with 200 within {HEALTHY_SECONDS:.0f} s after it was mended")


def deadman_age(stack: Stack) -> tuple[float, float]:
    """Seconds since the page receiver heard a Watchdog, and how many it allows."""
    state = deadman(stack)
    return state["age_seconds"], state["timeout_seconds"]


def deadman(stack: Stack) -> dict[str, Any]:
    """What the page receiver says about the Watchdog."""
    health: dict[str, Any] = msgspec.json.decode(get(stack.ports["page_receiver"], "/healthz"))
    state: dict[str, Any] = health["deadman"]
    return state


def until(seconds: float) -> Iterator[None]:
    """Turns of a polling loop until the time is over, and at least one."""
    deadline = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_SECONDS)
