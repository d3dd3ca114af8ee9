"""``python -m instrumented_engine.api``: the HTTP server."""

from __future__ import annotations

import resource
import signal
import sys
import threading
from pathlib import Path

import zmq

from instrumented_engine.api.admission import Gate
from instrumented_engine.api.app import build_app
from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.listener import StartError, bind
from instrumented_engine.api.served_model import ServedModel
from instrumented_engine.api.server import make_server
from instrumented_engine.api.tls import ReloadingContext
from instrumented_engine.config import EngineSettings
from instrumented_engine.model.source import ModelUnavailable
from instrumented_engine.process import count_logs, die_with_parent, end_with_sentence, start_logging
from telemetry.layout import API, endpoint_roles
from telemetry.scoreboard import PageError, Writer, runtime_directory
from telemetry.settings import parse_or_exit


def main() -> None:
    """Serve until SIGTERM."""
    die_with_parent()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing to load again before the first core is ready
    settings = parse_or_exit(EngineSettings, "instrumented_engine.api")
    start_logging(settings.log_level)
    _raise_fd_limit()
    try:
        directory = Path(settings.runtime_dir) if settings.runtime_dir else runtime_directory(create=True)
        tls = ReloadingContext(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        listener = bind(settings)
        page = Writer(directory, API, generation=settings.generation)
        count_logs(page)
        client = _open_sockets(settings, page)
        model = ServedModel(settings.model)
    except (PageError, ModelUnavailable, StartError, ValueError) as error:
        sys.exit(end_with_sentence("instrumented_engine.api", error))
    page["main_thread_id"] = threading.get_native_id()
    endpoints = {"http": f"{settings.host}:{settings.port}"}
    for core in range(settings.data_parallel_size):
        endpoints |= endpoint_roles(core, *settings.endpoints_of(core))
    page.set_endpoints(endpoints)
    gate = Gate(page)
    app = build_app(settings, client, model, page, gate, [tls.reload_if_changed] if tls else [])
    server = make_server(app, settings, gate, client, page, tls.context if tls else None)
    server.run(sockets=[listener])
    page.close()


def _open_sockets(settings: EngineSettings, page: Writer) -> CoreClient:
    try:
        return CoreClient(settings, page)
    except zmq.ZMQError as error:
        endpoints = f"{settings.input_endpoint} and {settings.output_endpoint}"
        raise StartError(f"cannot bind the sockets to the cores ({endpoints}): {error}") from error


def _raise_fd_limit() -> None:
    """The soft limit of open files is 1024 by tradition; a server may use what the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
