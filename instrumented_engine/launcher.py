"""What the launcher does between start and end: supervise, load the model again, stop in order."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from pathlib import Path
from typing import Final

from instrumented_engine.child import STOP_SECONDS, Child, stop
from instrumented_engine.config import EngineSettings
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from telemetry.layout import API, GATE_RELOADING
from telemetry.scoreboard import SUFFIX, PageError, Reader

_log = logging.getLogger("instrumented_engine")
_POLL_SECONDS: Final = 0.1
_AFTER_DRAIN_SECONDS: Final = 3.0
"""What the API process gets on top of its drain: the last answers, and leaving."""


def as_flags(settings: EngineSettings) -> list[str]:
    """The settings as flags for a child process."""
    return [_flag(f"--{name.replace('_', '-')}", value) for name, value in dataclasses.asdict(settings).items()]


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"--no-{name.removeprefix('--')}"
    return f"{name}={value}"


class Launcher:
    """The engine's processes. The API process is the engine: when it ends, so does everything."""

    def __init__(self, settings: EngineSettings) -> None:
        """Start them."""
        self._settings = settings
        self._stops = 0
        self._reload_asked = False
        self._had_terminal = _has_terminal()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        self._api = Child("instrumented_engine.api", self._flags)
        self._cores = [self._core(index) for index in range(settings.data_parallel_size)]
        self._exporters: list[Child] = []
        if _otlp_endpoint_configured():
            flags = [f"--runtime-dir={settings.runtime_dir}"]
            self._exporters.append(Child("telemetry.span_exporter", lambda _: flags))

    def _flags(self, restarts: int, core_index: int = 0) -> list[str]:
        return as_flags(dataclasses.replace(self._settings, generation=restarts, core_index=core_index))

    def _core(self, index: int) -> Child:
        name = self._settings.core_name(index)
        return Child("instrumented_engine.core", lambda restarts: self._flags(restarts, index), name)

    def _on_stop(self, *_: object) -> None:
        self._stops += 1

    def _on_reload(self, *_: object) -> None:
        """SIGHUP: somebody asks for a reload, or the terminal that we were started in is gone."""
        if self._had_terminal and not _has_terminal():
            self._stops += 1
        else:
            self._reload_asked = True

    def run(self) -> int:
        """Until SIGTERM, Ctrl-C or the end of the API process; the exit status."""
        others = [*self._cores, *self._exporters]
        while self._api_lives and not any(child.refused for child in others):
            for child in others:
                child.restart_when_due()
            if self._reload_asked:
                self._reload_asked = False
                self._reload()
            time.sleep(_POLL_SECONDS)
        # In the order of the data: open requests need the core, the last records need the exporter.
        stop([self._api], self._settings.drain_timeout + _AFTER_DRAIN_SECONDS, self._in_a_hurry)
        stop(self._cores, self._core_stop_seconds, self._in_a_hurry)
        stop(self._exporters, STOP_SECONDS)
        _remove_sockets(self._settings)
        if self._stops:
            return 0
        refused = next((child.process.returncode for child in others if child.refused), None)
        return self._api.process.returncode if refused is None else refused

    def _in_a_hurry(self) -> bool:
        return self._stops > 1

    @property
    def _core_stop_seconds(self) -> float:
        """A core leaves after its step, and a step may be one long prefill: killing it early would look like a crash.

        Nobody waits for its tokens by then, so that this only delays the end.
        """
        return self._settings.drain_timeout + STOP_SECONDS

    @property
    def _api_lives(self) -> bool:
        return not self._stops and self._api.process.poll() is None

    def _reload(self) -> None:
        """New cores with the same settings, behind a listener that never closes.

        The API process stops taking requests and finishes those it has; then the cores are replaced, and the first new
        one that is ready opens the gate again.
        """
        try:
            ModelSource.resolve(self._settings.model)
        except ModelUnavailable as error:
            _log.error("the model is not loaded again: %s", error)
            return
        _log.info("loading the model again")
        self._api.process.send_signal(signal.SIGHUP)
        self._wait_for_requests()
        if self._api_lives:
            stop(self._cores, self._core_stop_seconds, lambda: self._stops > 0)
        if self._api_lives:
            for core in self._cores:
                core.start_again()

    def _wait_for_requests(self) -> None:
        page = _page_of(self._api.process.pid, Path(self._settings.runtime_dir))
        if page is None:
            return
        deadline = time.monotonic() + self._settings.drain_timeout
        while self._api_lives and not _is_quiet(page):
            if time.monotonic() >= deadline:
                _log.warning("%d requests did not end within --drain-timeout", page["requests_inflight"])
                break
            time.sleep(_POLL_SECONDS)
        page.close()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _is_quiet(page: Reader) -> bool:
    return page["gate"] == GATE_RELOADING and page["requests_inflight"] == 0


def _page_of(pid: int, directory: Path) -> Reader | None:
    try:
        return Reader(directory / f"{API.role}-{pid}{SUFFIX}")
    except PageError as error:
        _log.warning("cannot see when the API process is idle: %s", error)
        return None


def _otlp_endpoint_configured() -> bool:
    """Whether the standard OpenTelemetry variables say where spans should go."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal_}ENDPOINT") for signal_ in ("", "TRACES_"))


def _remove_sockets(settings: EngineSettings) -> None:
    for core in range(settings.data_parallel_size):
        for endpoint in settings.endpoints_of(core):
            if endpoint.startswith("ipc://"):
                Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
