"""A benchmark without keep-alive leaves hundreds of its connections in TIME_WAIT, where they harm nobody."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from enginescope.decoys.proofs import Proof, reached
from enginescope.drill import DrillError
from enginescope.stack import Stack

COULD_PAGE: Final = ("connection_growth", "connections_near_limit", "close_wait_leak")
SPAN: Final = "13m"
"""ConnectionGrowth compares five minutes with the five before, for three."""
_REQUESTS: Final = 600
_ENOUGH: Final = 300


@contextmanager
def happening(stack: Stack) -> Iterator[Proof]:
    """Ask and leave, as fast as one client can; the kernel keeps the rest for a minute."""
    port = stack.ports["engine"]
    for _ in range(_REQUESTS):
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as client:
                client.request("GET", "/v1/models", headers={"Connection": "close"})
                client.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            raise DrillError(f"the engine did not answer a short request: {error}") from error
    yield reached(stack, "connections", _ENOUGH, port=str(port), state="time_wait")
