"""``enginescope up``: start the whole stack, prove that it works, then show what it does until it is stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from enginescope import toolchain
from enginescope.isolation import prefix
from enginescope.pages import format_page
from enginescope.probe import ProbeError
from enginescope.services import HOST, Part, Plan, Ports, own_sink, parts, service
from enginescope.stack import FAULTS, MARKER, TRAFFIC, Stack, StackError, hold_file
from enginescope.status import Traffic, count_series, count_spans, new_pages, status_line
from enginescope.supervisor import Service, Supervisor
from telemetry.scoreboard import runtime_directory
from telemetry.stages import STAGES

_READY_SECONDS: Final = 180
_SPANS_SECONDS: Final = 15
_BAD_INPUT: Final = 2


class UpError(Exception):
    """The stack cannot start; the message is one sentence."""


@dataclass(frozen=True)
class Options:
    """What was asked on the command line."""

    model: str
    engine: str
    ports: Ports
    seconds: float
    """0: until stopped."""
    rate: float
    """Requests a second of the built-in traffic; 0 for none."""
    as_json: bool
    engine_flags: tuple[str, ...] = ()
    time_scale: float = 1.0
    """Factor on the windows and waits of the alert rules."""
    peer_namespace: str = ""
    """Where the other end of this process's own network namespace is; empty when it shares the host's."""
    faults: bool = False
    """Whether drills may trigger faults inside the engine."""


class Session:
    """One run of ``up``."""

    def __init__(self, options: Options) -> None:
        """Check what can be checked before anything starts.

        Raises:
            UpError: a busy port, or a stack that runs already.
        """
        self._options = options
        self._console = Console(stderr=options.as_json, soft_wrap=True, highlight=False)
        self._stopping = False
        self._runtime_dir = runtime_directory(create=True)
        self._check_free()
        self._work_dir = Path(tempfile.mkdtemp(prefix="enginescope-"))
        self._plan = Plan(
            options.engine,
            options.model,
            options.ports,
            self._runtime_dir,
            self._work_dir,
            options.engine_flags,
            paging=not self._missing_tools(),
            time_scale=options.time_scale,
            isolated=bool(options.peer_namespace),
            faults=options.faults,
        )
        self._parts = list(parts(self._plan))
        self._supervisor = Supervisor(self._say, lambda name: hold_file(self._runtime_dir, name).exists())
        self._ready: dict[str, bool] = dict.fromkeys((part.name for part in self._parts), False)
        self._traffic = Traffic()
        self._saved: Stack | None = None
        self._next_page = 0
        self._pages = 0
        self._paused = False

    def run(self) -> int:
        """Start, show, stop; the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        try:
            self._start()
            if not self._stopping:
                self._announce()
                self._watch()
                self._finish()
        finally:
            self._clean_up()
        return 0 if all(self._ready.values()) or self._stopping else 1

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._say(f"{signal.Signals(number).name}: stopping everything")
        self._stopping = True

    def _say(self, text: str) -> None:
        self._console.print(Text(text))

    def _check_free(self) -> None:
        try:
            running = Stack.load(self._runtime_dir)
        except StackError:
            pass
        else:
            raise UpError(
                f"a stack is already running (pid {running.pid}, runtime directory {self._runtime_dir}); "
                f"stop it, or set ENGINESCOPE_RUNTIME_DIR and other ports for a second one"
            )
        if busy := self._options.ports.busy():
            which = ", ".join(map(str, busy))
            raise UpError(f"in use on {HOST}: port {which}; free it or choose others (see `enginescope up --help`)")

    def _missing_tools(self) -> list[str]:
        needed = [tool for tool in toolchain.missing() if tool in ("prometheus", "alertmanager")]
        if needed:
            self._say(
                f"going on without paging: {' and '.join(needed)} not found; run `make install`, or install Debian's "
                f"packages prometheus and prometheus-alertmanager"
            )
        return needed

    def _start(self) -> None:
        hold_file(self._runtime_dir, TRAFFIC).unlink(missing_ok=True)
        self._prepare_faults()
        for part in self._parts:
            hold_file(self._runtime_dir, part.name).unlink(missing_ok=True)
            if part.command:
                self._supervisor.start(service(part, self._plan))
        deadline = time.monotonic() + _READY_SECONDS
        while not self._stopping and not all(self._ready.values()):
            self._supervisor.poll()
            self._check_refused()
            for part in self._parts:
                if not self._ready[part.name] and part.is_ready():
                    self._ready[part.name] = True
                    self._say(f"  ready  {part.name:14} {part.what}")
            if time.monotonic() > deadline:
                late = ", ".join(name for name, ready in self._ready.items() if not ready)
                raise UpError(f"not ready after {_READY_SECONDS} s: {late}; logs are in {self._keep_logs()}")

    def _prepare_faults(self) -> None:
        """An empty directory for faults on purpose, or none."""
        directory = self._runtime_dir / FAULTS
        shutil.rmtree(directory, ignore_errors=True)
        if self._plan.faults:
            directory.mkdir(mode=0o700)

    def _check_refused(self) -> None:
        """A process that ends with status 2 refused its input; its last line says why."""
        for running in self._supervisor.services.values():
            if running.status == _BAD_INPUT and running.tail:
                raise UpError(f"{running.name} did not start: {running.tail[-1]}")

    def _keep_logs(self) -> Path:
        kept = Path(tempfile.mkdtemp(prefix="enginescope-logs-"))
        for log in self._work_dir.glob("*.log"):
            shutil.copy(log, kept)
        return kept

    def _announce(self) -> None:
        self._saved = self._marker()
        self._saved.save()
        port = self._plan.ports.engine
        inside = f"{prefix(os.getpid())} " if self._plan.isolated else ""
        self._say(
            "\nAsk it something:\n\n"
            f"  {inside}curl -s http://{HOST}:{port}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
            '    -d \'{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
            '"temperature": 0, "max_tokens": 32}\'\n\n'
            f"Then, in another terminal, its six stages:\n\n  {_command()} trace last\n\n"
            f"and the accept queue broken on purpose, until you are paged:\n\n  {_command()} drill tcp_backlog_full\n\n"
            "Ctrl-C stops everything.\n"
        )
        if self._options.rate:
            self._start_traffic()

    def _start_traffic(self) -> None:
        options = ("--rate", str(self._options.rate), "--max-tokens", "24", "--seconds", "0")
        url = f"http://{HOST}:{self._plan.ports.engine}"
        part = Part(TRAFFIC, "", lambda: True, [sys.executable, "-m", "enginescope", "load", "--url", url, *options])
        load = service(part, self._plan)
        load.on_line = self._traffic.take
        load.restart = False
        self._supervisor.start(load)

    def _watch(self) -> None:
        end = time.monotonic() + (self._options.seconds or float("inf"))
        interactive = self._console.is_terminal
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            shown = 0.0
            while not self._stopping and time.monotonic() < end:
                self._supervisor.poll(0.5)
                self._update_pids()
                self._pause_traffic()
                self._show_pages()
                if interactive:
                    live.update(Text(status_line(self._plan.ports, self._pages)), refresh=True)
                elif time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    self._say(status_line(self._plan.ports, self._pages))

    def _pause_traffic(self) -> None:
        """Stop the traffic while somebody holds it."""
        load, held = self._supervisor.services.get(TRAFFIC), hold_file(self._runtime_dir, TRAFFIC).exists()
        if load is not None and load.pid and held is not self._paused:
            self._paused = held
            os.killpg(load.pid, signal.SIGSTOP if held else signal.SIGCONT)

    def _update_pids(self) -> None:
        """Keep the marker true after restarts: drills signal these process groups."""
        marker = self._marker()
        if marker != self._saved:
            self._saved = marker
            marker.save()

    def _marker(self) -> Stack:
        services = self._supervisor.services.values()
        return Stack(
            pid=os.getpid(),
            engine=self._plan.engine,
            ports=vars(self._plan.ports).copy(),
            pids={running.name: running.pid for running in services if running.restart},
            runtime_dir=str(self._runtime_dir),
            time_scale=self._plan.time_scale,
            peer_namespace=self._options.peer_namespace,
            offers=(FAULTS,) if self._plan.faults else (),
        )

    def _show_pages(self) -> None:
        for page in new_pages(self._plan.ports, self._next_page):
            self._next_page = page.id
            self._pages += page.status == "firing"
            self._say(format_page(page))

    def _finish(self) -> None:
        """Let open requests end and their spans arrive, then say what happened."""
        load = self._supervisor.services.get(TRAFFIC)
        if self._options.seconds and load is not None and load.pid:
            self._drain(load)
        spans = self._count_spans()
        summary = {
            "ready": self._ready,
            "requests": {"sent": self._traffic.sent, "ok": len(self._traffic.trace_ids)},
            "spans": spans,
            "series": self._count_series(),
            "pages": self._pages,
        }
        if self._traffic.last_error:
            self._say(f"last failed request: {self._traffic.last_error}")
        if self._options.as_json:
            print(json.dumps(summary), flush=True)
        elif self._options.seconds:
            self._say(json.dumps(summary, indent=2))

    def _drain(self, load: Service) -> None:
        os.killpg(load.pid, signal.SIGTERM)
        self._until(lambda: load.status is not None)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something, but not when the operator is waiting for us."""
        deadline = time.monotonic() + _SPANS_SECONDS
        while not condition() and not self._stopping and time.monotonic() < deadline:
            self._supervisor.poll(0.2)

    def _count_spans(self) -> dict[str, int] | None:
        """Spans of the traffic's traces, once all have come; None when the endpoint is somebody else's."""
        if not own_sink():
            return None
        ports, wanted = self._plan.ports, self._traffic.trace_ids
        counts = {stage.span_name: 0 for stage in STAGES}

        def all_there() -> bool:
            counts.update(count_spans(ports, wanted))
            return min(counts.values()) >= len(wanted)

        try:
            self._until(all_there)
        except ProbeError as error:
            self._say(f"cannot count spans: {error}")
        return counts

    def _count_series(self) -> int:
        if not self._plan.paging:
            return 0
        try:
            return count_series(self._plan.ports, self._plan.engine)
        except ProbeError as error:
            self._say(f"cannot count series: {error}")
            return 0

    def _clean_up(self) -> None:
        (self._runtime_dir / MARKER).unlink(missing_ok=True)
        self._supervisor.stop()
        for directory in (self._work_dir, self._runtime_dir / FAULTS):
            shutil.rmtree(directory, ignore_errors=True)


def _command() -> str:
    """How to call this program again from the same directory."""
    if shutil.which("enginescope"):
        return "enginescope"
    program = Path(sys.executable).parent / "enginescope"
    if not program.exists():
        return f"{sys.executable} -m enginescope"
    return str(program.relative_to(Path.cwd())) if program.is_relative_to(Path.cwd()) else str(program)
