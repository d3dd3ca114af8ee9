"""``python -m instrumented_engine``: start the API process, the cores and the span exporter, and keep them going.

The API process is the engine: when it ends, so does everything. A core or an exporter that dies is started again with
back-off while the API stays up. Without an OTLP endpoint in the environment there is no exporter. SIGHUP loads the
model again without closing the listener.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from instrumented_engine import endpoints
from instrumented_engine.config import EngineSettings
from instrumented_engine.cpus import resolve_cpus
from instrumented_engine.launcher import Launcher
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.process import end_with_sentence, start_logging
from telemetry.scoreboard import PageError, remove_stale, runtime_directory
from telemetry.settings import parse_or_exit


def main() -> None:
    """Run the engine until SIGTERM or Ctrl-C; exit status 0 for those, 2 for bad input, else the API's."""
    settings = parse_or_exit(EngineSettings, "instrumented_engine")
    start_logging(settings.log_level)
    try:
        ModelSource.resolve(settings.model)
        if settings.cpu_bind:
            resolve_cpus(settings.cpu_bind)
        settings = _with_endpoints(settings)
    except (PageError, ModelUnavailable, ValueError) as error:
        sys.exit(end_with_sentence("instrumented_engine", error))
    sys.exit(Launcher(settings).run())


def _with_endpoints(settings: EngineSettings) -> EngineSettings:
    """Fill in the runtime directory and the endpoints that were left to us."""
    if settings.runtime_dir:
        os.environ["ENGINESCOPE_RUNTIME_DIR"] = str(Path(settings.runtime_dir).absolute())
    directory = runtime_directory(create=True)
    remove_stale(directory)
    address = settings.bind_address
    if settings.interface:
        address = endpoints.address_of(settings.interface)
    if address:
        endpoints.verify_address(address)
    default = endpoints.default(directory, os.getpid(), address, settings.core_port)
    return dataclasses.replace(
        settings,
        runtime_dir=str(directory),
        bind_address=address,
        interface="",
        input_endpoint=settings.input_endpoint or default.input,
        output_endpoint=settings.output_endpoint or default.output,
    )


if __name__ == "__main__":
    main()
