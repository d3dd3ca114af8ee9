"""The row of the first dashboard that answers: what changed?"""

from __future__ import annotations

from dashboards.model import Kind, Panel, Query
from dashboards.promql import increase, rate, series, total
from dashboards.words import HEALTHY_COUNT, ONLY_WHEN_BAD
from telemetry import catalog


def changes() -> tuple[Panel, ...]:
    """Its panels."""
    return _outcomes(), _refusals(), _tokens(), _restarts(), _cpu(), _logs(), _versions()


def _outcomes() -> Panel:
    return Panel(
        id=21,
        title="Requests by outcome",
        says="Requests that ended, per second. Aborted ones are clients that left.",
        unit="reqps",
        queries=(
            Query(total(rate(catalog.REQUESTS), "outcome"), "{{outcome}}"),
            Query(total(rate(catalog.CLIENT_DISCONNECTS)), "client left before the end"),
        ),
        stacked=True,
    )


def _refusals() -> Panel:
    return Panel(
        id=20,
        title="Requests refused, and errors told",
        says="Requests answered with 503 at once, by reason, and errors by class. Shedding is what keeps the others "
        "fast; all of it is requests that somebody has to repeat.",
        unit="reqps",
        queries=(
            Query(total(rate(catalog.REQUESTS_SHED), "reason"), "shed: {{reason}}"),
            Query(total(rate(catalog.REQUEST_ERRORS), "class"), "error: {{class}}"),
        ),
        steady=HEALTHY_COUNT,
    )


def _tokens() -> Panel:
    return Panel(
        id=23,
        title="Tokens",
        says="Prompt tokens read and tokens generated, per second, in requests that ended.",
        unit="cps",
        queries=(Query(total(rate(catalog.TOKENS), "kind"), "{{kind}}"),),
    )


def _restarts() -> Panel:
    return Panel(
        id=22,
        width=6,
        title="Processes found, and started again",
        says="New processes of the engine. A steady trickle is a restart loop, which each single look at the engine "
        "would call healthy.",
        unit="short",
        queries=(
            Query(total(increase(catalog.PROCESS_STARTS), "process"), "{{process}} found"),
            Query(
                total(increase(catalog.PROCESS_RESTARTS), "process"), "{{process}} restarted", optional=ONLY_WHEN_BAD
            ),
        ),
        steady=HEALTHY_COUNT,
    )


def _cpu() -> Panel:
    return Panel(
        id=24,
        width=6,
        title="CPU by process",
        says="Cores in use. A process near a whole number may have a thread that has no more to give.",
        unit="none",
        queries=(Query(total(rate(catalog.PROCESS_CPU), "process"), "{{process}}"),),
    )


def _logs() -> Panel:
    return Panel(
        id=29,
        width=6,
        title="Warnings and errors logged",
        says="Log records per second by process and level. What they say is in the engine's log.",
        unit="cps",
        queries=(Query(total(rate(catalog.LOG_RECORDS), "process", "level"), "{{process}} {{level}}"),),
        steady=HEALTHY_COUNT,
    )


def _versions() -> Panel:
    return Panel(
        id=25,
        width=6,
        title="Versions and starts",
        says="The sidecar's version, and since when each process runs. Both also stand as annotations in every panel.",
        kind=Kind.TABLE,
        unit="s",
        queries=(
            Query(f"max by (version) ({series(catalog.BUILD_INFO)})", optional="shown beside the processes"),
            Query(f"time() - max by (process) ({series(catalog.PROCESS_START)})"),
        ),
        hidden=("Time", "Value #A"),
    )
