"""A client sends a hundred requests that are wrong, and is told so each time: its fault, not the engine's."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, grew
from enginescope.drill import DrillError
from enginescope.stack import Stack

COULD_PAGE: Final = ("tcp_backlog_full", "step_stalled")
SPAN: Final = "5m"
_REQUESTS: Final = 100


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Send them one after the other."""
    proof = grew(stack, "request_errors_total", _REQUESTS)
    with closing(http.client.HTTPConnection("127.0.0.1", stack.ports["engine"], timeout=10)) as client:
        for _ in range(_REQUESTS):
            try:
                client.request("POST", "/v1/completions", '{"prompt": 7', {"Content-Type": "application/json"})
                response = client.getresponse()
                response.read()
            except (OSError, http.client.HTTPException) as error:
                raise DrillError(f"a wrong request got no answer: {error}") from error
            if not 400 <= response.status < 500:
                raise DrillError(f"a wrong request was answered with {response.status}")
    yield proof
