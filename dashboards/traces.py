"""The fourth dashboard: from a latency to the request that had it."""

from __future__ import annotations

from dashboards.model import Dashboard, Kind, Panel, Query, Row
from dashboards.places import TRACES
from dashboards.promql import heat, quantile, rate, total
from dashboards.promql import mean as mean_of
from dashboards.words import NEEDS_JAEGER
from telemetry import catalog


def traces() -> Dashboard:
    """Build it."""
    return Dashboard(
        uid=TRACES,
        title="enginescope: traces",
        says="Which request shows it: latencies with trace ids, slow traces, and one trace with its six stages.",
        traces=True,
        rows=(
            Row("Is it healthy? Latency and the spans themselves", (_requests(), _first_tokens(), _spans())),
            Row("Where do requests wait?", (_stages(), _means())),
            Row("Which request shows it?", (_slow(), _trace())),
        ),
    )


def _requests() -> Panel:
    return Panel(
        id=301,
        title="Duration of requests",
        says="How many requests took how long. Points are single requests: each leads to its trace.",
        kind=Kind.HEATMAP,
        unit="s",
        queries=(Query(heat(catalog.REQUEST_DURATION), "{{le}}", exemplars=True),),
        height=9,
    )


def _first_tokens() -> Panel:
    return Panel(
        id=302,
        title="Time to the first token",
        says="How many requests had their first output after how long. Points are single requests: each leads to its "
        "trace.",
        kind=Kind.HEATMAP,
        unit="s",
        queries=(Query(heat(catalog.TIME_TO_FIRST_TOKEN), "{{le}}", exemplars=True),),
        height=9,
    )


def _spans() -> Panel:
    return Panel(
        id=304,
        title="What became of the spans",
        says="Spans exported, dropped and not sampled; records that were overwritten before they were read; batches "
        "that the endpoint did not take. What is dropped here is missing below.",
        unit="cps",
        queries=(
            Query(total(rate(catalog.SPANS), "outcome"), "{{outcome}}"),
            Query(total(rate(catalog.RECORDS_LOST), "process"), "records lost by the {{process}}"),
            Query(total(rate(catalog.EXPORT_FAILURES)), "batches refused"),
            Query(mean_of(catalog.EXPORT_DURATION), "a batch takes", unit="s"),
        ),
        height=9,
    )


def _stages() -> Panel:
    return Panel(
        id=305,
        title="Stages, p99",
        says="Duration of each stage for all but the slowest hundredth. Points are single requests: each leads to its "
        "trace, where that stage is the long bar."
        " Buckets above 10 s are wide: there the points are exact and the lines are not.",
        unit="s",
        queries=(Query(quantile(0.99, catalog.STAGE_DURATION, "stage"), "{{stage}}", exemplars=True),),
        width=12,
    )


def _means() -> Panel:
    return Panel(
        id=306,
        title="Stages, mean",
        says="Mean duration of each stage. The last three overlap while a request streams.",
        unit="s",
        queries=(Query(mean_of(catalog.STAGE_DURATION, "stage"), "{{stage}}"),),
        width=12,
    )


def _slow() -> Panel:
    return Panel(
        id=307,
        title="Slow requests",
        says="Traces of at least the duration chosen above. A trace id leads to its stages below.",
        kind=Kind.TABLE,
        unit="string",
        queries=(
            Query(
                "",
                jaeger={
                    "queryType": "search",
                    "service": "$service",
                    "minDuration": "$slower_than",
                    "limit": 20,
                },
            ),
        ),
        height=12,
        hardware=NEEDS_JAEGER,
    )


def _trace() -> Panel:
    return Panel(
        id=308,
        title="The stages of one request",
        says="The trace that was chosen: an HTTP server span and six stages, with what the kernel's queues held "
        "meanwhile. Look for the longest bar, then for the panel of that stage.",
        kind=Kind.TRACES,
        unit="string",
        queries=(Query("", jaeger={"query": "$trace"}),),
        width=16,
        height=12,
        hardware=NEEDS_JAEGER,
    )
