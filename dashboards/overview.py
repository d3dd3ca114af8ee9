"""The first dashboard: is it healthy, where do requests wait, what changed, which request shows it."""

from __future__ import annotations

from typing import Final

from alerts.build import RUNBOOK_BASE
from alerts.catalogue import Alert, alerts
from dashboards.changes import changes
from dashboards.model import Dashboard, Kind, Limit, Panel, Query, Row
from dashboards.places import OVERVIEW, place
from dashboards.promql import (
    busy,
    heat,
    highest,
    mean,
    quantile,
    rate,
    series,
    total,
)
from dashboards.words import FOUND, HEALTHY_COUNT, HEALTHY_STATE, NONE_IS_GOOD, UP
from telemetry import catalog
from telemetry.stages import STAGES, Stage

_FIRST_STAGE_PANEL: Final = 11
_WHAT_A_STAGE_IS: Final = {
    "receive": "Request parsed by the server until its message was handed to the input socket, in the API process.",
    "deserialize": "Handed to the input socket until decoded on the core's input queue, transit included.",
    "schedule": "On the input queue until a step first takes it. Grows when the batch or the KV cache is full.",
    "forward": "First scheduled until its last token was sampled: every forward pass it took part in.",
    "output_socket.send": "First output on the output queue until the last was handed to the socket. Runs beside "
    "forward while a request streams.",
    "output_socket.receive": "First output handed over until the last was given to the request's stream. Runs beside "
    "forward while a request streams.",
}


def overview() -> Dashboard:
    """Build it."""
    return Dashboard(
        uid=OVERVIEW,
        title="enginescope: overview",
        says="Is the engine healthy, where do requests wait, what changed, and which request shows it.",
        rows=(
            Row("Is it healthy?", (*_lights(), *_golden(), _firing(), _faults())),
            Row("Where do requests wait?", (*map(_stage, STAGES), _shares(), _slowest(), _population(), _oldest())),
            Row("What changed?", changes()),
            Row("Which request shows it?", (_heatmap(), _percentiles(), _alert_table())),
        ),
    )


def _lights() -> tuple[Panel, ...]:
    return (
        Panel(
            id=1,
            title="Engine",
            says="Whether any process of the engine is there. Down means that every request fails.",
            kind=Kind.STAT,
            unit="bool",
            queries=(Query(highest(series(catalog.ENGINE_UP)), "engine"),),
            words=UP,
            width=3,
            height=4,
            steady=HEALTHY_STATE,
        ),
        Panel(
            id=2,
            title="Sidecar",
            says="Whether Prometheus reaches the sidecar. While it does not, everything else here is old or missing.",
            kind=Kind.STAT,
            unit="bool",
            queries=(Query('max(up{job="enginescope",engine="$engine"})', "sidecar"),),
            words=UP,
            width=3,
            height=4,
            steady=HEALTHY_STATE,
        ),
        Panel(
            id=3,
            title="Hidden facts",
            says="Facts about the engine that the sidecar has no permission to see. Its log says what to grant.",
            kind=Kind.STAT,
            unit="short",
            queries=(
                Query(f"count({series(catalog.VISIBLE)}) - {total(series(catalog.VISIBLE))}", "hidden"),
                Query(
                    f"count({series(catalog.COLLECTOR_SUCCESS)}) - {total(series(catalog.COLLECTOR_SUCCESS))}",
                    "failing",
                ),
            ),
            limits=NONE_IS_GOOD,
            width=3,
            height=4,
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=4,
            title="Alerts are evaluated",
            says="The Watchdog alert, which always fires. Without it no other alert arrives either.",
            kind=Kind.STAT,
            unit="bool",
            queries=(Query('max(ALERTS{alertname="Watchdog",alertstate="firing"})', "watchdog"),),
            words=UP,
            width=3,
            height=4,
            steady=HEALTHY_STATE,
        ),
    )


def _golden() -> tuple[Panel, ...]:
    failed = total(rate(catalog.REQUESTS, outcome="~server_error|shed"))
    return (
        Panel(
            id=5,
            title="Requests",
            says="Requests for a completion that arrive, per second.",
            kind=Kind.STAT,
            unit="reqps",
            queries=(Query(total(rate(catalog.REQUESTS_RECEIVED)), "arrive"),),
            width=3,
            height=4,
        ),
        Panel(
            id=6,
            title="Failed",
            says="Share of the finished requests that ended with a server error or were shed with 503.",
            kind=Kind.STAT,
            unit="percentunit",
            queries=(Query(f"{failed} / {total(rate(catalog.REQUESTS))}", "failed"),),
            limits=(Limit(0.001, "orange"), Limit(0.01, "red")),
            top=1,
            width=3,
            height=4,
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=7,
            title="First token, p95",
            says="Time from the HTTP request to its first output, for all but the slowest twentieth.",
            kind=Kind.STAT,
            unit="s",
            queries=(Query(quantile(0.95, catalog.TIME_TO_FIRST_TOKEN), "p95"),),
            width=3,
            height=4,
        ),
        Panel(
            id=8,
            title="Whole request, p95",
            says="Time from the HTTP request to the end of its response, for all but the slowest twentieth.",
            kind=Kind.STAT,
            unit="s",
            queries=(Query(quantile(0.95, catalog.REQUEST_DURATION), "p95"),),
            width=3,
            height=4,
        ),
    )


def _firing() -> Panel:
    return Panel(
        id=9,
        title="Firing alerts",
        says="Alerts of this engine that fire now, and those of no particular engine. The table at the end of this "
        "dashboard leads from each alert to its panel and its runbook.",
        kind=Kind.TABLE,
        unit="string",
        queries=(
            Query(
                'max by (alertname, severity, process, port, role) (ALERTS{alertstate="firing",engine=~"$engine|"})',
            ),
        ),
        hidden=("Time", "Value"),
        steady=HEALTHY_STATE,
    )


def _faults() -> Panel:
    return Panel(
        id=10,
        title="Faults that the judge finds",
        says="What the sidecar's judge says is wrong, in which process, ten times a second: work is outstanding and "
        "this one thing has not moved. An idle engine has no fault.",
        kind=Kind.STATES,
        unit="bool",
        queries=(Query(series(catalog.FAULT), "{{fault}} in {{process}}"),),
        words=FOUND,
        width=16,
        steady=HEALTHY_STATE,
    )


def _stage(stage: Stage) -> Panel:
    number = STAGES.index(stage)
    return Panel(
        id=_FIRST_STAGE_PANEL + number,
        title=f"{number + 1}. {stage.name}",
        says=f"{_WHAT_A_STAGE_IS[stage.name]} Mean of the requests that ended, with its course.",
        kind=Kind.STAT,
        unit="s",
        queries=(Query(mean(catalog.STAGE_DURATION, stage=stage.name), "mean"),),
        width=4,
        height=4,
    )


def _shares() -> Panel:
    return Panel(
        id=17,
        title="Where the time of requests goes",
        says="Seconds that requests spent in each stage, per second: 3 means that three requests were in it on "
        "average. The last three stages overlap while a request streams, so compare bands, not their sum.",
        unit="none",
        queries=(Query(busy(catalog.STAGE_DURATION, "stage"), "{{stage}}"),),
        stacked=True,
        width=12,
    )


def _slowest() -> Panel:
    return Panel(
        id=18,
        title="Stages, p95",
        says="Duration of each stage for all but the slowest twentieth of requests. Points are requests: each leads "
        "to its trace."
        " Buckets above 10 s are wide: there the points are exact and the lines are not.",
        unit="s",
        queries=(Query(quantile(0.95, catalog.STAGE_DURATION, "stage"), "{{stage}}", exemplars=True),),
        width=12,
    )


def _population() -> Panel:
    return Panel(
        id=19,
        title="Requests in the engine",
        says="In flight is between arrival and end of the response. Waiting ones are in the core and no step has taken "
        "them; running ones are in its batch.",
        unit="short",
        queries=(
            Query(total(series(catalog.REQUESTS_INFLIGHT)), "in flight"),
            Query(total(series(catalog.REQUESTS_AT), "kind"), "{{kind}} (API)"),
            Query(total(series(catalog.REQUESTS_WAITING)), "waiting (core)"),
            Query(total(series(catalog.REQUESTS_RUNNING)), "running (core)"),
        ),
        width=12,
    )


def _oldest() -> Panel:
    return Panel(
        id=28,
        title="The oldest one, by where it is",
        says="Age of the request that has been longest in each place. One that only grows is a request that hangs, "
        "which no histogram shows before it ends.",
        unit="s",
        queries=(Query(highest(series(catalog.OLDEST), "kind"), "{{kind}}"),),
        width=12,
    )


def _heatmap() -> Panel:
    return Panel(
        id=26,
        title="Duration of requests",
        says="How many requests took how long. Two bands are two kinds of requests; a band that wanders upwards is "
        "queueing. Points are single requests: each leads to its trace.",
        kind=Kind.HEATMAP,
        unit="s",
        queries=(Query(heat(catalog.REQUEST_DURATION), "{{le}}", exemplars=True),),
        width=12,
        height=9,
    )


def _percentiles() -> Panel:
    return Panel(
        id=27,
        title="Duration of requests, percentiles",
        says="Median, and all but the slowest twentieth and hundredth. Points are single requests: each leads "
        "to its trace."
        " Buckets above 10 s are wide: there the points are exact and the lines are not.",
        unit="s",
        queries=(
            Query(quantile(0.5, catalog.REQUEST_DURATION), "p50"),
            Query(quantile(0.95, catalog.REQUEST_DURATION), "p95"),
            Query(quantile(0.99, catalog.REQUEST_DURATION), "p99", exemplars=True),
        ),
        width=12,
        height=9,
    )


def _alert_table() -> Panel:
    rows = "".join(map(_alert_line, alerts()))
    return Panel(
        id=30,
        title="Every alert, its panel and its runbook",
        says="Where each alert is seen, and what to do about it.",
        kind=Kind.TEXT,
        unit="string",
        text=f"| alert | severity | seen in | what to do |\n|---|---|---|---|\n{rows}",
        width=24,
        height=max(6, 3 + len(alerts())),
    )


def _alert_line(alert: Alert) -> str:
    dashboard, panel = place(alert.name)
    return (
        f"| {alert.alert} | {alert.severity} | [panel](/d/{dashboard}?viewPanel={panel}&${{engine:queryparam}}) "
        f"| [runbook]({RUNBOOK_BASE}/{alert.name}/runbook.md) |\n"
    )
