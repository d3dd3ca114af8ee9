"""Which IO threads of a process are gone, as its page names them and /proc lists them."""

from __future__ import annotations

import os
from typing import Final

from telemetry.scoreboard import Reader

_SLOTS: Final = {"input": "input_thread_id", "output": "output_thread_id"}


def gone_threads(page: Reader) -> tuple[str, ...]:
    """Kinds of the threads that ran once and are not there any more; empty while that cannot be told.

    It cannot for a process that is not visible, that numbers its threads in another pid namespace, or that has ended:
    three stat(2) calls, so that it can be asked ten times a second.
    """
    pid = page.header.pid
    if page.owner() != pid or not _is_there(pid, pid):
        return ()
    threads = {kind: page[slot] for kind, slot in _SLOTS.items()}
    gone = tuple(kind for kind, thread in threads.items() if thread and not _is_there(pid, thread))
    return gone if page.owner() == pid else ()  # it may have died between two looks, and then all are gone


def _is_there(pid: int, thread: int) -> bool:
    return os.path.exists(f"/proc/{pid}/task/{thread}")  # noqa: PTH110 - ten times a second
