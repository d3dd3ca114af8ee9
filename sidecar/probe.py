"""A request a second to the engine, for those who ask for it: whether anybody answers at all, whatever the answer."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Final
from urllib.parse import urlsplit

INTERVAL_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 2.0
_OWN_DELAY_SECONDS: Final = 0.6
"""A failure that took so much longer than the timeout says that this process was held up itself."""


def parse_probe(url: str) -> tuple[str, int, str]:
    """Host, port and path of ``http://HOST:PORT/PATH``.

    Raises:
        ValueError: it is none; the message is one sentence.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise ValueError(f"--probe takes http://HOST:PORT/PATH, not {url!r}")
    return parts.hostname, port, parts.path or "/"


class Probe(threading.Thread):
    """Asks from the sidecar's own network namespace, on a connection of its own each time."""

    def __init__(self, url: str) -> None:
        """Raises ValueError with one sentence for a URL that is none."""
        super().__init__(name="probe", daemon=True)
        self._host, self._port, self._path = parse_probe(url)
        self._stopping = threading.Event()
        self.failures: int | None = None
        """Probes in a row without an answer; None before the first answer of all."""

    def stop(self) -> None:
        """End after the probe that is on its way."""
        self._stopping.set()

    def run(self) -> None:
        """Until ``stop``."""
        while not self._stopping.wait(INTERVAL_SECONDS):
            started = time.monotonic()
            answered = self._ask()
            late = time.monotonic() - started > TIMEOUT_SECONDS + _OWN_DELAY_SECONDS
            if answered:
                self.failures = 0
            elif self.failures is not None and not late:
                self.failures += 1

    def _ask(self) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", self._path, headers={"Connection": "close"})
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True
