"""What a stack consists of: the command, port and readiness of each process that ``up`` starts."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from alerts import catalogue
from alerts.build import DASHBOARD_BASE, RUNBOOK_BASE, build
from deploy import render
from enginescope import toolchain
from enginescope.probe import is_ready
from enginescope.stack import FAULTS
from enginescope.supervisor import Service
from telemetry.layout import EXPORTER
from telemetry.scoreboard import Liveness, PageError, Reader, pages

HOST: Final = "127.0.0.1"
_DEADMAN_SECONDS: Final = 15
_NEVER_SECONDS: Final = 10**9  # without Prometheus there is no Watchdog to miss
_OTLP_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@dataclass(frozen=True)
class Ports:
    """Ports of a stack, all on 127.0.0.1."""

    engine: int = 8000
    sidecar: int = 9177
    prometheus: int = 9090
    alertmanager: int = 9093
    page_receiver: int = 9095
    otlp: int = 4318

    def busy(self) -> list[int]:
        """Ports that somebody else listens on."""
        return [port for port in vars(self).values() if _is_busy(port)]


def _is_busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


@dataclass(frozen=True)
class Plan:
    """What to start."""

    engine: str
    """Value of the ``engine`` label."""
    model: str
    ports: Ports
    runtime_dir: Path
    work_dir: Path
    """Configuration, data and logs; removed at the end."""
    engine_flags: tuple[str, ...] = ()
    paging: bool = True
    """Whether Prometheus and Alertmanager are there."""
    time_scale: float = 1.0
    """Factor on the windows and waits of the alert rules; below 1 for drills."""
    isolated: bool = False
    """Whether all of it runs in a network namespace of its own, whose peer is to reach the engine."""
    faults: bool = False
    """Whether files in the runtime directory may trigger faults in the engine."""


@dataclass(frozen=True)
class Part:
    """One process of the stack, or one that a process of the stack starts."""

    name: str
    what: str
    """For people: what it is and where."""
    is_ready: Callable[[], bool]
    command: list[str] = field(default_factory=list)
    """Empty when another part starts it."""
    environment: dict[str, str] = field(default_factory=dict)


def own_sink() -> bool:
    """Whether spans go to the stack's own OTLP sink: nobody named another endpoint."""
    return not any(os.environ.get(variable) for variable in _OTLP_VARIABLES)


def parts(plan: Plan) -> Iterator[Part]:
    """The parts in the order in which they are started."""
    yield from _receivers(plan)
    yield from _engine(plan)
    yield _sidecar(plan)
    if plan.paging:
        yield from _paging(plan)


def service(part: Part, plan: Plan) -> Service:
    """The part as something to supervise."""
    environment = os.environ | {"ENGINESCOPE_RUNTIME_DIR": str(plan.runtime_dir), "PYTHONUNBUFFERED": "1"}
    return Service(
        name=part.name,
        command=shlex.join(part.command),
        environment=environment | part.environment,
        log=plan.work_dir / f"{part.name}.log",
    )


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _receivers(plan: Plan) -> Iterator[Part]:
    ports = plan.ports
    if own_sink():
        yield Part(
            "otlp_sink",
            f"counts what arrives as OTLP: http://{HOST}:{ports.otlp}/v1/traces",
            lambda: is_ready(ports.otlp, "/healthz"),
            _python("enginescope.otlp_sink", "--listen", f"{HOST}:{ports.otlp}"),
        )
    yield Part(
        "page_receiver",
        f"takes Alertmanager's pages: http://{HOST}:{ports.page_receiver}/pages",
        lambda: is_ready(ports.page_receiver, "/healthz"),
        _python(
            "enginescope.page_receiver",
            *("--listen", f"{HOST}:{ports.page_receiver}"),
            *("--deadman-timeout", str(_DEADMAN_SECONDS if plan.paging else _NEVER_SECONDS)),
        ),
    )


def _engine(plan: Plan) -> Iterator[Part]:
    port = plan.ports.engine
    flags = ("--host", "0.0.0.0") if plan.isolated else ()
    spans_to = {_OTLP_VARIABLES[0]: f"http://{HOST}:{plan.ports.otlp}"} if own_sink() else {}
    yield Part(
        "engine",
        f"{plan.model} behind an OpenAI-compatible API: http://{HOST}:{port}/v1",
        lambda: is_ready(port, "/health"),
        _python("instrumented_engine", "--model", plan.model, "--port", str(port), *flags, *plan.engine_flags),
        spans_to | ({"ENGINESCOPE_FAULTS_DIR": str(plan.runtime_dir / FAULTS)} if plan.faults else {}),
    )
    yield Part(
        "span_exporter",
        "a process of the engine: request records -> OpenTelemetry spans",
        lambda: _has_live_page(plan.runtime_dir, EXPORTER.role),
    )


def _has_live_page(directory: Path, role: str) -> bool:
    for path in pages(directory):
        try:
            reader = Reader(path)
        except PageError:
            continue
        found = reader.layout.role == role and reader.liveness() is Liveness.ALIVE
        reader.close()
        if found:
            return True
    return False


def _sidecar(plan: Plan) -> Part:
    port = plan.ports.sidecar
    return Part(
        "sidecar",
        f"kernel facts and the engine's scoreboard: http://{HOST}:{port}/metrics",
        lambda: is_ready(port, "/readyz"),
        _python(
            "sidecar",
            *("--engine", f"{plan.engine}=port:{plan.ports.engine}"),
            *("--listen", f"{HOST}:{port}"),
            *("--runtime-dir", str(plan.runtime_dir)),
        ),
    )


def _paging(plan: Plan) -> Iterator[Part]:
    ports = plan.ports
    prometheus_config, alertmanager_config = _write_configs(plan)
    yield Part(
        "prometheus",
        f"scrapes every second, evaluates the alert rules: http://{HOST}:{ports.prometheus}",
        lambda: is_ready(ports.prometheus, "/-/ready"),
        render.prometheus_command(
            toolchain.find("prometheus"),
            prometheus_config,
            plan.work_dir / "prometheus",
            f"{HOST}:{ports.prometheus}",
        ),
    )
    yield Part(
        "alertmanager",
        f"groups, inhibits, pages: http://{HOST}:{ports.alertmanager}",
        lambda: is_ready(ports.alertmanager, "/-/ready"),
        render.alertmanager_command(
            toolchain.find("alertmanager"),
            alertmanager_config,
            plan.work_dir / "alertmanager",
            f"{HOST}:{ports.alertmanager}",
        ),
    )


def _rules(plan: Plan) -> Path:
    """The shipped rules, or the same ones with another sense of time."""
    if plan.time_scale == 1:
        return catalogue.BUILT
    scaled = plan.work_dir / "rules.yaml"
    scaled.write_text(build(catalogue.alerts(), plan.time_scale, RUNBOOK_BASE, DASHBOARD_BASE))
    return scaled


def _write_configs(plan: Plan) -> tuple[Path, Path]:
    ports = plan.ports
    prometheus, alertmanager = plan.work_dir / "prometheus.yaml", plan.work_dir / "alertmanager.yaml"
    prometheus.write_text(
        render.render_prometheus(
            engine=plan.engine,
            sidecar=f"{HOST}:{ports.sidecar}",
            prometheus=f"{HOST}:{ports.prometheus}",
            alertmanager=f"{HOST}:{ports.alertmanager}",
            rules=_rules(plan),
        )
    )
    alertmanager.write_text(render.render_alertmanager(page_receiver=f"{HOST}:{ports.page_receiver}"))
    return prometheus, alertmanager
