"""``enginescope dashboards``: export, check against a live Prometheus, or draw previews."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from dashboards.build import dashboards
from dashboards.live import Finding, Verdict, check, known_traces, summary
from dashboards.preview.answers import look_back
from dashboards.preview.page import WIDTH, page
from dashboards.preview.picture import photograph
from dashboards.prometheus import Server
from enginescope.stack import Stack, StackError
from telemetry.scoreboard import runtime_directory

_TABLE_WIDTH: Final = 130
_COLOURS: Final = {Verdict.MOVES: "green", Verdict.STEADY: "green", Verdict.QUIET: "cyan", Verdict.NOT_HERE: "yellow"}


def check_live(prometheus: str, engine: str | None, traces: str | None, wait: float) -> int:
    """Ask for every panel, print a table, then one line of JSON; the exit status.

    Raises:
        ProbeError: Prometheus does not answer, or has no such engine.
    """
    server = Server(prometheus, engine)
    known = known_traces(runtime_directory(), traces or own_sink())
    findings = check(dashboards(), server, known, wait)
    console = Console(highlight=False)
    console.print(table(findings), width=max(console.width, _TABLE_WIDTH))
    told = summary(findings)
    print(json.dumps(told), flush=True)
    return 1 if told["faults"] else 0


def preview(prometheus: str, engine: str | None, traces: str | None, folder: Path, seconds: float) -> Iterator[Path]:
    """Draw every dashboard as it is now, as HTML and as PNG; the paths.

    Raises:
        ProbeError: Prometheus does not answer, or has no such engine.
        OSError: the folder cannot be written.
        PictureError: there is no browser, or it fails.
    """
    server = Server(prometheus, engine)
    moment = look_back(server, seconds, time.time())
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in dashboards():
        html = folder / f"{dashboard.uid}.html"
        text, height = page(server, dashboard, moment, traces or own_sink())
        html.write_text(text)
        yield html
        picture = html.with_suffix(".png")
        photograph(html, picture, WIDTH, height)
        yield picture


def own_sink() -> str | None:
    """Address of the running stack's OTLP sink; None without a stack."""
    try:
        return f"http://127.0.0.1:{Stack.load(runtime_directory()).ports['otlp']}"
    except StackError:
        return None


def table(findings: Iterable[Finding]) -> Table:
    """The findings for people."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("dashboard", "panel", "title", "", "why"):
        shown.add_column(name, justify="right" if name == "panel" else "left")
    for one in findings:
        colour = _COLOURS.get(one.verdict, "red")
        why = one.why or (f"{one.exemplars} exemplars lead to traces" if one.exemplars else "")
        name = one.dashboard.removeprefix("enginescope-")
        shown.add_row(name, str(one.panel.id), one.panel.title, f"[{colour}]{one.verdict.value}[/]", why)
    return shown
