"""Prompts of thousands of tokens, one after the other: steps take longer than usual, and first tokens too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, grew
from enginescope.load import ask
from enginescope.stack import Stack

COULD_PAGE: Final = ("step_stalled", "event_loop_blocked", "input_thread_stuck")
SPAN: Final = "5m"
_WORDS: Final = 600
_EVERY_SECONDS: Final = 0.5
_ENOUGH: Final = 5000


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Ask for one token after a long text, again and again, with a new beginning each time so that no cache helps."""
    over = threading.Event()
    thread = threading.Thread(target=_ask, args=(f"http://127.0.0.1:{stack.ports['engine']}", over), daemon=True)
    proof = grew(stack, "tokens_total", _ENOUGH, kind="prompt")
    thread.start()
    try:
        yield proof
    finally:
        over.set()
        thread.join()


def _ask(url: str, over: threading.Event) -> None:
    number = 0
    while not over.wait(_EVERY_SECONDS):
        number += 1
        ask(url, f"{number} " + "tell me more " * _WORDS, 1, chat=False, stream=False)
