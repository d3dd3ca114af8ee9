"""``python -m instrumented_engine.api``: the HTTP server."""

from __future__ import annotations

import errno
import resource
import socket
import sys
import threading
from pathlib import Path

import uvicorn
import zmq

from instrumented_engine.api.app import build_app
from instrumented_engine.api.client import CoreClient
from instrumented_engine.config import EngineSettings
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.model.tokenizers import load_tokenizer
from instrumented_engine.process import die_with_parent, end_with_sentence, start_logging
from telemetry.layout import API
from telemetry.scoreboard import PageError, Writer, runtime_directory
from telemetry.settings import parse_or_exit

_DRAIN_SECONDS = 1


class StartError(Exception):
    """The server cannot start; the message is one sentence."""


def main() -> None:
    """Serve until SIGTERM."""
    die_with_parent()
    settings = parse_or_exit(EngineSettings, "instrumented_engine.api")
    start_logging(settings.log_level)
    _raise_fd_limit()
    try:
        directory = Path(settings.runtime_dir) if settings.runtime_dir else runtime_directory(create=True)
        listener = _bind(settings)
        page = Writer(directory, API, generation=settings.generation)
        client = _open_sockets(settings, page)
        source = ModelSource.resolve(settings.model)
        tokenizer = load_tokenizer(source)
    except (PageError, ModelUnavailable, StartError, ValueError) as error:
        sys.exit(end_with_sentence("instrumented_engine.api", error))
    page["main_thread_id"] = threading.get_native_id()
    page.set_endpoints(
        {
            "http": f"{settings.host}:{settings.port}",
            "input": settings.input_endpoint,
            "output": settings.output_endpoint,
        }
    )
    app = build_app(client, tokenizer, source.name, page)
    config = uvicorn.Config(
        app,
        backlog=settings.backlog,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        log_level=settings.log_level if settings.log_level != "info" else "warning",
        access_log=False,
        lifespan="on",
    )
    uvicorn.Server(config).run(sockets=[listener])
    page.close()


def _bind(settings: EngineSettings) -> socket.socket:
    """The HTTP socket, bound but not yet listening: uvicorn calls listen() with the backlog."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        # SO_REUSEADDR lets a second socket bind beside one that does not listen yet; listening now settles it.
        listener.listen(settings.backlog)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {settings.port} is in use on {settings.host}: choose another with --port"
            ) from error
        raise StartError(f"cannot listen on {where}: {error.strerror}") from error
    return listener


def _open_sockets(settings: EngineSettings, page: Writer) -> CoreClient:
    try:
        return CoreClient(settings, page)
    except zmq.ZMQError as error:
        endpoints = f"{settings.input_endpoint} and {settings.output_endpoint}"
        raise StartError(f"cannot bind the sockets to the core ({endpoints}): {error}") from error


def _raise_fd_limit() -> None:
    """The soft limit of open files is 1024 by tradition; a server may use what the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
