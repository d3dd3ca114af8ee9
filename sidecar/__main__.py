"""``python -m sidecar --engine demo=port:8000``: sample until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from sidecar.collectors import log
from sidecar.config import SidecarSettings
from sidecar.exposition import Exposition
from sidecar.http import ListenError, MetricsServer
from sidecar.probe import Probe
from sidecar.sampler import Sampler
from sidecar.target import parse_engine
from telemetry.scoreboard import runtime_directory
from telemetry.settings import parse_or_exit

_FRESH_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.5
"""How long the end of the server may take."""


def main() -> None:
    """Run the sidecar; exit status 0 for SIGTERM and Ctrl-C, 2 for bad input or a busy port."""
    settings = parse_or_exit(SidecarSettings, "sidecar", "ENGINESCOPE_SIDECAR_")
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sampler = start_sampler(settings)
    try:
        server = start_server(settings, sampler)
    except ListenError as error:
        print(f"sidecar: {error}", file=sys.stderr)
        sys.exit(2)
    log.info("watching %s, metrics on http://%s:%d/metrics", settings.engine, settings.address()[0], server.port)
    sampler.run(stop)
    server.shutdown()
    server.server_close()


def start_sampler(settings: SidecarSettings) -> Sampler:
    """The sampler that the settings describe, not running yet."""
    directory = Path(settings.runtime_dir) if settings.runtime_dir else runtime_directory()
    probe = Probe(settings.probe) if settings.probe else None
    return Sampler(
        parse_engine(settings.engine),
        directory,
        Path(settings.proc_root),
        probe=probe,
        keep_alive=settings.keep_alive or None,
    )


def start_server(settings: SidecarSettings, sampler: Sampler) -> MetricsServer:
    """Serve the sampler's snapshots in a thread.

    Raises:
        ListenError: the address is taken or not ours.
    """
    exposition = Exposition(lambda: sampler.latest, _version())

    def ready() -> bool:
        latest = sampler.latest
        return latest is not None and time.monotonic() - latest.monotonic < _FRESH_SECONDS

    server = MetricsServer(*settings.address(), exposition.answer, ready)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": _POLL_SECONDS}, daemon=True).start()
    return server


def _version() -> str:
    try:
        return version("enginescope")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
