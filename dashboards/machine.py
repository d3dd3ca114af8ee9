"""The rows of the third dashboard about processes and GPUs: what changed?"""

from __future__ import annotations

from dashboards.limits import limit
from dashboards.model import Limit, Panel, Query
from dashboards.promql import highest, rate, recorded, series, total
from dashboards.words import A_SETTING, HEALTHY_COUNT, HEALTHY_STATE, NEEDS_GPU, THREAD
from telemetry import catalog
from telemetry.catalog import Metric


def processes() -> tuple[Panel, ...]:
    """Files, memory, processors and the gate."""
    ratio = "engine_process:open_fds_used:ratio"
    resident = recorded("memory_growth", "engine_process:resident_memory_bytes:max")
    return (
        Panel(
            id=221,
            title="Open files",
            says="Descriptors of each process, and the kinds of the one that has most. One kind that only grows is a "
            "leak.",
            unit="short",
            queries=(
                Query(recorded("fd_growth", "engine_process:open_fds:max"), "{{process}}"),
                Query(highest(series(catalog.PROCESS_FD_KINDS), "kind"), "kind: {{kind}}"),
            ),
            steady="a server with open connections keeps them",
        ),
        Panel(
            id=222,
            title="Open files: share of the limit",
            says="At the limit accept() fails: new clients hang while open streams go on.",
            unit="percentunit",
            queries=(Query(recorded("fd_exhausted", ratio), "{{process}}"),),
            limits=(
                Limit(limit("fd_exhausted", f"min_over_time({ratio}[1m])"), "orange"),
                Limit(limit("fd_exhausted", f"max_over_time({ratio}[1m])"), "red"),
            ),
            top=1,
            steady="a server with open connections keeps them",
        ),
        Panel(
            id=223,
            title="Memory",
            says="Resident memory of each process, and its share of what the process can have. A loaded model stands "
            "still; what keeps rising is a leak.",
            unit="bytes",
            queries=(
                Query(resident, "{{process}}"),
                Query(
                    f"{resident} / {recorded('memory_growth', 'engine_process:memory_limit_bytes:min')}",
                    "{{process}}: share of its limit",
                    unit="percentunit",
                ),
            ),
        ),
        Panel(
            id=224,
            title="CPU of the named threads",
            says="Share of a core by thread. One at 1 is the bottleneck, however idle the machine is.",
            unit="percentunit",
            queries=(
                Query(total(rate(catalog.THREAD_CPU), "process", "kind"), THREAD),
                Query(highest(series(catalog.BUSIEST_THREAD), "process"), "{{process}}: busiest of all"),
            ),
        ),
        Panel(
            id=225,
            title="Time slices lost",
            says="Context switches of the main threads per second. Involuntary ones are taken away: too many threads "
            "for the cores.",
            unit="ops",
            queries=(Query(total(rate(catalog.CONTEXT_SWITCHES), "process", "kind"), THREAD),),
        ),
        Panel(
            id=226,
            title="Threads",
            says="Threads of each process.",
            unit="short",
            queries=(Query(total(series(catalog.PROCESS_THREADS), "process"), "{{process}}"),),
            steady=A_SETTING,
        ),
        Panel(
            id=227,
            title="The sidecar itself",
            says="What watching costs, and whether the watcher itself was starved: a gap above 0.6 s makes it start "
            "every judgement anew.",
            unit="percentunit",
            queries=(
                Query(total(rate(catalog.SIDECAR_CPU)), "CPU"),
                Query(highest(series(catalog.LOOP_GAP)), "longest gap between samples", unit="s"),
                Query(highest(series(catalog.SCAN_INTERVAL)), "connections every", unit="s"),
            ),
        ),
        Panel(
            id=229,
            title="The gate that lets requests in",
            says="Whether the API process takes new requests, and how many a second its limiter lets in while it is "
            "on. Everything else is answered with 503.",
            unit="short",
            queries=(
                Query(total(series(catalog.GATE), "state"), "{{state}}"),
                Query(
                    total(series(catalog.RATE_LIMIT)),
                    "limiter",
                    unit="reqps",
                    optional="only while the adaptive limiter is on",
                ),
            ),
            steady=HEALTHY_STATE,
        ),
        Panel(
            id=228,
            title="Ended early, sockets lost, unhealthy",
            says="Sequences that the core ended for a client that left, a stop string or a failure; connections "
            "between the processes that ended; and for how many reasons /health fails.",
            unit="cps",
            queries=(
                Query(total(rate(catalog.CORE_ENDED), "outcome"), "{{outcome}}"),
                Query(total(rate(catalog.DISCONNECTS), "role"), "{{role}} socket lost"),
                Query(total(series(catalog.HEALTH_PROBLEMS)), "reasons", unit="short"),
            ),
            steady=HEALTHY_COUNT,
        ),
    )


def gpu() -> tuple[Panel, ...]:
    """What NVML tells."""

    def panel(number: int, title: str, says: str, unit: str, *queries: tuple[str, str]) -> Panel:
        return Panel(
            id=230 + number,
            title=title,
            says=says,
            unit=unit,  # type: ignore[arg-type]
            queries=tuple(Query(expression, legend, optional=NEEDS_GPU) for expression, legend in queries),
            hardware=NEEDS_GPU,
        )

    def one(metric: Metric) -> str:
        return total(series(metric))

    return (
        panel(
            1,
            "GPU: share of the time in use",
            "Share of the time in which any kernel ran, mean of the engine's GPUs, beside what waits. Idle with work "
            "waiting means that the processor cannot feed it.",
            "percentunit",
            (one(catalog.GPU_UTILIZATION), "in use"),
        ),
        panel(
            2,
            "GPU: memory",
            "Memory in use by whomever, what there is, and what each process of the engine holds.",
            "bytes",
            (one(catalog.GPU_MEMORY_USED), "used"),
            (one(catalog.GPU_MEMORY), "there is"),
            (total(series(catalog.GPU_PROCESS_MEMORY), "process"), "{{process}}"),
        ),
        panel(
            3,
            "GPU: power",
            "Power draw of the engine's GPUs; the difference between idle and busy is the work.",
            "watt",
            (one(catalog.GPU_POWER), "power"),
            (total(rate(catalog.GPU_ENERGY)), "mean by energy"),
        ),
    )
