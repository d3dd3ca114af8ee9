"""The ``enginescope`` command."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from telemetry.version import VERSION

app = typer.Typer(
    help="See why an LLM inference engine is slow, stuck or refusing connections.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_BAD_INPUT = 2


def _fail(error: Exception, status: int = _BAD_INPUT) -> typer.Exit:
    typer.echo(f"enginescope: {error}", err=True)
    return typer.Exit(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"enginescope {VERSION}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See why an LLM inference engine is slow, stuck or refusing connections."""


@app.command()
def up(
    model: Annotated[str, typer.Option(help="smollm2, dummy, or the path of a .gguf file.")] = "smollm2",
    name: Annotated[str, typer.Option(help="Value of the `engine` label.")] = "demo",
    engine_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    sidecar_port: Annotated[int, typer.Option(min=1, max=65535)] = 9177,
    prometheus_port: Annotated[int, typer.Option(min=1, max=65535)] = 9090,
    alertmanager_port: Annotated[int, typer.Option(min=1, max=65535)] = 9093,
    page_receiver_port: Annotated[int, typer.Option(min=1, max=65535)] = 9095,
    otlp_port: Annotated[int, typer.Option(min=1, max=65535)] = 4318,
    seconds: Annotated[float, typer.Option("--for", min=0, help="Stop after so many seconds; 0: run on.")] = 0,
    rate: Annotated[float, typer.Option(min=0, max=1000, help="Built-in traffic, requests a second.")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")] = False,
    time_scale: Annotated[
        float, typer.Option(min=0.01, max=1, help="Factor on the alert rules' windows and waits, for quick drills.")
    ] = 1.0,
    faults: Annotated[
        bool, typer.Option("--faults", help="Let drills trigger faults inside the engine: a thread that dies, a stall.")
    ] = False,
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="A flag for the engine, such as --engine-flag=--backlog=128.")
    ] = None,
    network_namespace: Annotated[
        bool,
        typer.Option("--network-namespace", help="Run in a network namespace of its own, for drills that need one."),
    ] = False,
) -> None:
    """Start engine, span exporter, sidecar, Prometheus, Alertmanager and page receiver, and watch them.

    Everything listens on 127.0.0.1. Ctrl-C stops all of it. A process that dies is started again.
    """
    from enginescope.isolation import IsolationError, isolate
    from enginescope.services import Ports
    from enginescope.up import Options, Session, UpError
    from telemetry.scoreboard import PageError

    ports = Ports(engine_port, sidecar_port, prometheus_port, alertmanager_port, page_receiver_port, otlp_port)
    try:
        peer = isolate() if network_namespace else ""
        flags = tuple(engine_flag or ())
        options = Options(model, name, ports, seconds, rate, as_json, flags, time_scale, peer, faults)
        status = Session(options).run()
    except (UpError, PageError, IsolationError) as error:
        raise _fail(error) from error
    raise typer.Exit(status)


@app.command()
def drill(
    names: Annotated[list[str] | None, typer.Argument(help="Failures to break on purpose, decoys, or `all`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")] = False,
    decoys: Annotated[bool, typer.Option("--decoys", help="Also what is healthy or odd, which must not page.")] = False,
    own_stack: Annotated[
        bool, typer.Option("--up", help="Start a stack for the drills and one for the decoys; stop them again.")
    ] = False,
    time_scale: Annotated[
        float, typer.Option(min=0.01, max=1, help="With --up: factor on the alert rules' windows and waits.")
    ] = 0.05,
    save: Annotated[bool, typer.Option("--save", help="Note the times for the table of alerts.")] = False,
) -> None:
    """Break the running stack on purpose and wait for the page.

    Only works on a stack that `enginescope up` started, or on one of its own (--up), and restores what it broke. What
    needs something that the stack lacks, such as a GPU, is skipped by name. Exit status 1: one failed, or none ran.
    """
    from alerts.catalogue import AlertError
    from enginescope.drill import DrillError
    from enginescope.drills.command import Wanted, as_line
    from enginescope.drills.command import drill as run
    from enginescope.isolation import IsolationError
    from enginescope.stack import StackError

    console = Console(stderr=as_json, highlight=False)
    try:
        told, status = run(Wanted(names or [], decoys, own_stack, time_scale, save), console)
    except (StackError, DrillError, IsolationError, AlertError) as error:
        raise _fail(error) from error
    if as_json:
        typer.echo(as_line(told))
    raise typer.Exit(status)


@app.command()
def trace(
    wanted: Annotated[str, typer.Argument(help="last, slow, or a trace or request id.")] = "last",
) -> None:
    """Show a request's six stages as a waterfall, from shared memory alone."""
    from enginescope.trace import TraceError, choose, read_records, waterfall
    from telemetry.scoreboard import runtime_directory

    try:
        record = choose(read_records(runtime_directory()), wanted)
    except TraceError as error:
        raise _fail(error, 1) from error
    console = Console(highlight=False)
    console.print(waterfall(record, console.width))


@app.command()
def load(
    url: Annotated[str, typer.Option(help="The engine.")] = "http://127.0.0.1:8000",
    rate: Annotated[float, typer.Option(min=0.01, max=10000, help="Requests a second.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="How long; 0: until SIGTERM.")] = 30,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to ask for.")] = 32,
) -> None:
    """Send requests of every kind at a rate; print one JSON object for each."""
    from enginescope.load import Generator

    generator = Generator(url, rate, seconds, max_tokens)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: generator.stop())
    for result in generator.results():
        typer.echo(json.dumps(asdict(result), ensure_ascii=False))


@app.command("dashboards")
def dashboards_command(
    check: Annotated[bool, typer.Option("--check", help="Ask a live Prometheus for every panel.")] = False,
    prometheus: Annotated[str, typer.Option(help="Its address.")] = "http://127.0.0.1:9090",
    engine: Annotated[str | None, typer.Option(help="Which engine, when it scrapes several.")] = None,
    traces: Annotated[
        str | None, typer.Option(help="OTLP sink or Jaeger that has the traces; shared memory is asked too.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in which a panel may still come to show something.")] = 60,
    export: Annotated[Path | None, typer.Option(help="Write the dashboards for Grafana into this folder.")] = None,
    preview: Annotated[
        Path | None, typer.Option(help="Draw pictures of them, without Grafana, into this folder.")
    ] = None,
    last: Annotated[float, typer.Option(min=10, help="Seconds that the pictures show.")] = 300,
) -> None:
    """Check the Grafana dashboards on a running stack, draw them without Grafana, or write them for it.

    The check ends with one line of JSON, and with status 1 when a panel shows nothing, stands still without a reason,
    or has exemplars whose traces nobody has.
    """
    from dashboards.build import write
    from dashboards.command import check_live
    from dashboards.command import preview as draw
    from dashboards.preview.picture import PictureError
    from enginescope.probe import ProbeError

    if not check and export is None and preview is None:
        raise _fail(ValueError("choose --check, --export DIR or --preview DIR"))
    try:
        for path in write(export) if export is not None else ():
            typer.echo(path)
        for path in draw(prometheus, engine, traces, preview, last) if preview is not None else ():
            typer.echo(path)
        status = check_live(prometheus, engine, traces, wait) if check else 0
    except (ProbeError, PictureError, OSError) as error:
        raise _fail(error) from error
    raise typer.Exit(status)
