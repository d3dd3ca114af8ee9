"""``python -m instrumented_engine``: start the API process, the core and the span exporter, and keep them going.

The API process is the engine: when it ends, so does everything. A core or an exporter that dies is started again with
back-off while the API stays up. Without an OTLP endpoint in the environment there is no exporter.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from instrumented_engine.config import EngineSettings, default_endpoint
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.process import end_with_sentence, start_logging
from telemetry.scoreboard import PageError, remove_stale, runtime_directory
from telemetry.settings import parse_or_exit

_log = logging.getLogger("instrumented_engine")
_STOP_SECONDS: Final = 1.5
_BACKOFF_SECONDS: Final = (0.5, 1, 2, 4, 8, 15, 30)
_BAD_INPUT: Final = 2


class Child:
    """One process under the launcher."""

    def __init__(self, module: str, flags: Callable[[int], list[str]]) -> None:
        """``flags`` gives the command line for the n-th restart."""
        self.module = module
        self._flags = flags
        self.restarts = 0
        self._due = 0.0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", self.module, *self._flags(self.restarts)])

    def restart_when_due(self) -> None:
        """Start a dead child again, later and later while it keeps dying."""
        status = self.process.poll()
        if status is None:
            return
        now = time.monotonic()
        if not self._due:
            delay = _BACKOFF_SECONDS[min(self.restarts, len(_BACKOFF_SECONDS) - 1)]
            _log.error("%s ended with status %d; starting it again in %g s", self.module, status, delay)
            self._due = now + delay
        elif now >= self._due:
            self.restarts += 1
            self._due = 0.0
            self.process = self._start()


def as_flags(settings: EngineSettings) -> list[str]:
    """The settings as flags for a child process."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in dataclasses.asdict(settings).items()]


def main() -> None:
    """Run the engine until SIGTERM or Ctrl-C; exit status 0 for those, 2 for bad input, else the API's."""
    settings = parse_or_exit(EngineSettings, "instrumented_engine")
    start_logging(settings.log_level)
    try:
        ModelSource.resolve(settings.model)
        settings = _with_endpoints(settings)
    except (PageError, ModelUnavailable, ValueError) as error:
        sys.exit(end_with_sentence("instrumented_engine", error))
    sys.exit(_supervise(settings))


def _with_endpoints(settings: EngineSettings) -> EngineSettings:
    """Fill in the runtime directory and the endpoints that were left to us."""
    if settings.runtime_dir:
        os.environ["ENGINESCOPE_RUNTIME_DIR"] = str(Path(settings.runtime_dir).absolute())
    directory = runtime_directory(create=True)
    remove_stale(directory)
    input_endpoint = settings.input_endpoint or default_endpoint(directory, "input", os.getpid())
    output_endpoint = settings.output_endpoint or default_endpoint(directory, "output", os.getpid())
    return dataclasses.replace(
        settings, runtime_dir=str(directory), input_endpoint=input_endpoint, output_endpoint=output_endpoint
    )


def _supervise(settings: EngineSettings) -> int:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopping.append(received))

    def flags(restarts: int) -> list[str]:
        return as_flags(dataclasses.replace(settings, generation=restarts))

    api = Child("instrumented_engine.api", flags)
    others = [Child("instrumented_engine.core", flags)]
    if _otlp_endpoint_configured():
        others.append(Child("telemetry.span_exporter", lambda _: [f"--runtime-dir={settings.runtime_dir}"]))
    while not stopping and api.process.poll() is None and not _refused(others):
        for child in others:
            child.restart_when_due()
        time.sleep(0.1)
    # In the order of the data: open requests need the core, the last records need the exporter.
    for child in (api, *others):
        _stop(child.process)
    _remove_sockets(settings)
    if stopping:
        return 0
    return next((child.process.returncode for child in others if _refused([child])), api.process.returncode)


def _otlp_endpoint_configured() -> bool:
    """Whether the standard OpenTelemetry variables say where spans should go."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal_}ENDPOINT") for signal_ in ("", "TRACES_"))


def _refused(children: list[Child]) -> bool:
    """Whether a child ended because of its settings: starting it again would not help."""
    return any(child.process.poll() == _BAD_INPUT for child in children)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _log.error("process %d did not stop within %g s and is killed", process.pid, _STOP_SECONDS)
        process.kill()
        process.wait()


def _remove_sockets(settings: EngineSettings) -> None:
    for endpoint in (settings.input_endpoint, settings.output_endpoint):
        if endpoint.startswith("ipc://"):
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
