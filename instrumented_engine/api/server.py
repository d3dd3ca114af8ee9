"""uvicorn with this engine's end of life: a drain that still answers, and a listener that closes last."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import time
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from instrumented_engine.api.admission import Gate
from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.errors import OverloadError
from instrumented_engine.api.listener import verify
from instrumented_engine.config import EngineSettings
from telemetry.layout import API
from telemetry.scoreboard import Writer

_log = logging.getLogger(__name__)
_INFLIGHT: Final = API.slot_index["requests_inflight"]
_LAST_ANSWERS_SECONDS: Final = 1
"""What answers that are written already, or an error after the drain's end, get to reach their clients."""


class EngineServer(uvicorn.Server):
    """Drains on the first SIGTERM or SIGINT; a second SIGTERM ends it at once."""

    def __init__(self, config: uvicorn.Config, settings: EngineSettings, gate: Gate, client: CoreClient, page: Writer):
        super().__init__(config)
        self._settings = settings
        self._gate = gate
        self._client = client
        self._slots = page.slots
        self._drain_until = 0.0
        self._terminated = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and look at what became of it."""
        await super().startup(sockets)
        for listener in sockets or []:
            verify(listener, self._settings.backlog)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Called for SIGTERM and SIGINT: the first begins the drain, a second SIGTERM cuts it short.

        Ctrl-C arrives as SIGINT from the terminal and as SIGTERM from the launcher; both mean the same wish. uvicorn's
        own handler raises the signal again when everything is over, which would end the process before it has said on
        its page that it left on purpose.
        """
        now = time.monotonic()
        if not self._drain_until:
            self._gate.drain()
            self._drain_until = now + self._settings.drain_timeout
        elif sig == signal.SIGTERM and self._terminated:
            self._drain_until = now
        self._terminated = self._terminated or sig == signal.SIGTERM

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to leave."""
        if self._drain_until:
            late = time.monotonic() >= self._drain_until
            if late and self._slots[_INFLIGHT]:
                _log.warning("%d requests did not end within --drain-timeout", self._slots[_INFLIGHT])
                self._client.fail_all(lambda: OverloadError("draining", "the engine is shutting down"))
            self.should_exit = self.should_exit or late or not self._slots[_INFLIGHT]
        return await super().on_tick(counter)


def make_server(
    app: ASGIApp,
    settings: EngineSettings,
    gate: Gate,
    client: CoreClient,
    page: Writer,
    tls: ssl.SSLContext | None,
) -> EngineServer:
    """The server; ``run(sockets=[listener])`` serves until SIGTERM."""
    config = uvicorn.Config(
        app,
        http=_counting_protocol(page),
        backlog=settings.backlog,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
        log_config=None,
        log_level=settings.log_level if settings.log_level != "info" else "warning",
        access_log=False,
        lifespan="on",
        ssl_context_factory=(lambda _config, _default: tls) if tls is not None else None,
    )
    return EngineServer(config, settings, gate, client, page)


def _counting_protocol(page: Writer) -> type[H11Protocol]:
    """The parser of uvicorn, which answers and closes what is not HTTP at all; here that is counted, too."""

    class CountingProtocol(H11Protocol):
        def send_400_response(self, msg: str) -> None:
            page["errors_protocol"] += 1
            super().send_400_response(msg)

    return CountingProtocol
