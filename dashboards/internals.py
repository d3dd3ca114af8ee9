"""The third dashboard: queues, threads and loops inside the engine, read from its shared memory."""

from __future__ import annotations

from typing import Final

from dashboards.limits import limit
from dashboards.model import Dashboard, Kind, Limit, Panel, Query, Row
from dashboards.places import INTERNALS
from dashboards.promql import age, heat, highest, mean, quantile, rate, recorded, series, total
from dashboards.words import A_SETTING, HEALTHY_COUNT, HEALTHY_STATE, NEEDS_GPU, NONE_IS_GOOD, ONLY_WHEN_BAD, THERE
from telemetry import catalog
from telemetry.catalog import Metric

_FROZEN: Final = f'{catalog.FAULT_SECONDS.name}{{fault="process_frozen",process!="exporter"}}'
"""What the alert of a frozen process looks at."""
_THREAD: Final = "{{process}} {{kind}}"
_NOT_ON_EVERY_ENGINE: Final = "only engines whose pages tell it"


def internals() -> Dashboard:
    """Build it."""
    return Dashboard(
        uid=INTERNALS,
        title="enginescope: engine internals",
        says="Queues between the stages, transit, steps, serialization, loops and threads, from shared memory: still "
        "true while a process hangs.",
        rows=(
            Row("Is it healthy?", (_threads(), _frozen(), _progress(), _judged(), _evidence(), _beats())),
            Row("Where do requests wait?", (*_between(), *_times(), *_loops())),
            Row("Where do requests wait? Steps and memory", (*_steps(), *_batch())),
            Row("What changed?", _processes()),
            Row("GPU", _gpu()),
        ),
    )


def _threads() -> Panel:
    return Panel(
        id=201,
        title="Processes and threads that must be there",
        says="The processes, and their main and IO threads by the ids on their pages. A dead thread leaves its process "
        "alive and every queue of the kernel empty.",
        kind=Kind.STATES,
        unit="bool",
        queries=(
            Query(f"min by (process) ({series(catalog.PROCESS_UP)})", "{{process}}"),
            Query(f"min by (process, kind) ({series(catalog.THREAD_UP)})", f"{_THREAD} thread"),
        ),
        words=THERE,
        steady=HEALTHY_STATE,
    )


def _frozen() -> Panel:
    return Panel(
        id=202,
        title="Stopped processes and threads",
        says="Processes that are stopped or in uninterruptible sleep, and how many of their threads.",
        unit="short",
        queries=(
            Query(highest(series(catalog.PROCESS_STATE), "process", "state"), "{{process}} {{state}}"),
            Query(highest(series(catalog.THREADS_BLOCKED), "process"), "{{process}}: threads"),
        ),
        limits=NONE_IS_GOOD,
        steady=HEALTHY_STATE,
    )


def _progress() -> Panel:
    return Panel(
        id=203,
        title="Time since the last sign of progress",
        says="Of the API's event loop, the core's step loop and the span exporter. An idle core is old here and "
        "healthy: look at the faults, which know whether work is outstanding.",
        unit="s",
        queries=(Query(highest(age(catalog.PROGRESS), "process"), "{{process}}"),),
    )


def _judged() -> Panel:
    return Panel(
        id=204,
        title="Faults, and for how long",
        says="What the judge finds, and how long it has been so. Nothing here means no fault.",
        unit="s",
        queries=(
            Query(
                highest(series(catalog.FAULT_SECONDS), "fault", "process"),
                "{{fault}} in {{process}}",
                optional=ONLY_WHEN_BAD,
            ),
        ),
        limits=(Limit(limit("process_frozen", f"max by (engine, process) ({_FROZEN})"), "red"),),
        steady=ONLY_WHEN_BAD,
    )


def _evidence() -> Panel:
    return Panel(
        id=205,
        title="What the judgement rests on",
        says="The numbers behind each fault, such as messages sent and not decoded.",
        kind=Kind.TABLE,
        unit="short",
        queries=(Query(f"max by (fault, process, kind) ({series(catalog.FAULT_EVIDENCE)})", optional=ONLY_WHEN_BAD),),
        hidden=("Time",),
        steady=ONLY_WHEN_BAD,
    )


def _beats() -> Panel:
    return Panel(
        id=206,
        title="Heartbeats of the IO threads",
        says="Time since each IO thread last came round its loop, busy or idle.",
        unit="s",
        queries=(Query(highest(age(catalog.HEARTBEAT), "process", "kind"), _THREAD),),
    )


def _between() -> tuple[Panel, ...]:
    return (
        Panel(
            id=211,
            title="Queues between the stages",
            says="Messages that are in a socket or a queue: handed over and not decoded, decoded and not taken, queued "
            "and not sent, sent and not received. The one that grows lies before the thread that is slow.",
            unit="short",
            queries=(
                Query(total(series(catalog.INPUT_UNRECEIVED)), "input: sent, not decoded"),
                Query(total(series(catalog.QUEUE_DEPTH, kind="input")), "input: decoded, not taken"),
                Query(total(series(catalog.REQUESTS_WAITING)), "core: waiting for a step"),
                Query(total(series(catalog.QUEUE_DEPTH, kind="output")), "output: queued, not sent"),
                Query(total(series(catalog.OUTPUT_UNRECEIVED)), "output: sent, not received"),
            ),
            width=12,
        ),
        Panel(
            id=212,
            title="Outputs that nobody received",
            says="Output messages that the core sent and the API process has not received, and for how long none was. "
            "ZMQ holds them in user memory, where no kernel queue shows them.",
            unit="short",
            queries=(
                Query(total(series(catalog.OUTPUT_UNRECEIVED)), "messages"),
                Query(highest(series(catalog.OUTPUT_UNRECEIVED_AGE)), "age", unit="s"),
            ),
            steady=HEALTHY_COUNT,
            width=12,
        ),
    )


def _times() -> tuple[Panel, ...]:
    return (
        Panel(
            id=213,
            title="Transit of output messages",
            says="Handed to the socket until received by the API process: the socket, and the receiver thread's turn "
            "on the processor.",
            unit="s",
            queries=(
                Query(mean(catalog.OUTPUT_TRANSIT), "mean"),
                Query(quantile(0.99, catalog.OUTPUT_TRANSIT), "p99, to a decade"),
            ),
        ),
        Panel(
            id=214,
            title="Serialization, mean per message",
            says="Encoding and decoding of input and output messages, and the send calls. Python holds one lock for "
            "all of it: what encodes does not decode.",
            unit="s",
            queries=tuple(
                Query(mean(metric), legend)
                for metric, legend in (
                    (catalog.INPUT_ENCODE, "input: encode"),
                    (catalog.INPUT_SEND_CALL, "input: send call"),
                    (catalog.INPUT_DECODE, "input: decode"),
                    (catalog.OUTPUT_ENCODE, "output: encode"),
                    (catalog.OUTPUT_SEND_CALL, "output: send call"),
                    (catalog.OUTPUT_DECODE, "output: decode"),
                )
            ),
        ),
        Panel(
            id=215,
            title="Messages and their size",
            says="Messages per second by socket and end, and their mean size. Sent and received lie on one another "
            "unless something falls behind.",
            unit="cps",
            queries=(
                Query(total(rate(catalog.MESSAGES), "role", "kind"), "{{role}} {{kind}}"),
                Query(mean(catalog.MESSAGE_SIZE, "role"), "{{role}}: mean size", unit="bytes"),
            ),
        ),
    )


def _loops() -> tuple[Panel, ...]:
    return (
        Panel(
            id=216,
            title="Lag of the API's event loop",
            says="How late its 100 ms tick ran. Everything that the API process does waits as long: accept, "
            "parsing, streaming.",
            unit="s",
            queries=(
                Query(mean(catalog.EVENT_LOOP_LAG), "mean"),
                Query(quantile(0.99, catalog.EVENT_LOOP_LAG), "p99, to a decade"),
            ),
        ),
        Panel(
            id=217,
            title="Event loop lag, all ticks",
            says="How many ticks were how late.",
            kind=Kind.HEATMAP,
            unit="s",
            queries=(Query(heat(catalog.EVENT_LOOP_LAG), "{{le}}"),),
        ),
        Panel(
            id=218,
            title="Wait in the core's input queue",
            says="Decoded until taken by the core's main thread, which looks between steps: about one step is normal.",
            unit="s",
            queries=(
                Query(mean(catalog.INPUT_QUEUE_WAIT), "mean"),
                Query(quantile(0.99, catalog.INPUT_QUEUE_WAIT), "p99, to a decade"),
            ),
        ),
    )


def _steps() -> tuple[Panel, ...]:
    return (
        Panel(
            id=241,
            title="Steps",
            says="Duration of the core's steps, and of the forward pass in them on its device. The longest of the last "
            "hundred is what a streaming client felt.",
            unit="s",
            queries=(
                Query(mean(catalog.STEP_DURATION), "step, mean"),
                Query(mean(catalog.FORWARD_DEVICE), "forward on its device, mean", optional=_NOT_ON_EVERY_ENGINE),
                Query(highest(series(catalog.STEP_LONGEST)), "longest of the last", optional=_NOT_ON_EVERY_ENGINE),
            ),
        ),
        Panel(
            id=242,
            title="Steps a second, tokens in a step",
            says="A step serves every running request once. Few steps with many tokens are prompts; many with few are "
            "answers.",
            unit="ops",
            queries=(
                Query(total(rate(catalog.STEPS)), "steps"),
                Query(total(series(catalog.STEP_TOKENS)), "tokens in the last step", unit="short"),
            ),
        ),
        Panel(
            id=243,
            title="What the core's main thread does",
            says="Its phase at each scrape. Forward is work; a long time in anything else is not.",
            unit="short",
            queries=(Query(total(series(catalog.CORE_PHASE), "state"), "{{state}}"),),
            stacked=True,
        ),
    )


def _batch() -> tuple[Panel, ...]:
    used = series(catalog.KV_BLOCKS, state="used")
    hits = total(rate(catalog.PREFIX_CACHE, kind="hit"))
    return (
        Panel(
            id=244,
            title="KV cache",
            says="Share of its blocks in use. When it is full, requests wait, or running ones are put back.",
            unit="percentunit",
            queries=(
                Query(f"{total(used)} / {total(series(catalog.KV_BLOCKS))}", "used"),
                Query(total(rate(catalog.PREEMPTIONS)), "put back", unit="cps"),
            ),
            top=1,
        ),
        Panel(
            id=245,
            title="Prefix cache",
            says="Share of the prompt tokens that were found in the cache, and so not computed again.",
            unit="percentunit",
            queries=(Query(f"{hits} / {total(rate(catalog.PREFIX_CACHE, kind='queried'))}", "found"),),
            top=1,
            steady="traffic without common prefixes finds nothing",
        ),
        Panel(
            id=246,
            title="Requests by place in the core",
            says="Waiting for a step, and in the batch.",
            unit="short",
            queries=(
                Query(total(series(catalog.REQUESTS_WAITING)), "waiting"),
                Query(total(series(catalog.REQUESTS_RUNNING)), "running"),
            ),
            stacked=True,
        ),
    )


def _processes() -> tuple[Panel, ...]:
    ratio = "engine_process:open_fds_used:ratio"
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
            says="Resident memory of each process. A loaded model stands still; what keeps rising is a leak.",
            unit="bytes",
            queries=(Query(total(series(catalog.PROCESS_RSS), "process"), "{{process}}"),),
        ),
        Panel(
            id=224,
            title="CPU of the named threads",
            says="Share of a core by thread. One at 1 is the bottleneck, however idle the machine is.",
            unit="percentunit",
            queries=(
                Query(total(rate(catalog.THREAD_CPU), "process", "kind"), _THREAD),
                Query(highest(series(catalog.BUSIEST_THREAD), "process"), "{{process}}: busiest of all"),
            ),
        ),
        Panel(
            id=225,
            title="Time slices lost",
            says="Context switches of the main threads per second. Involuntary ones are taken away: too many threads "
            "for the cores.",
            unit="ops",
            queries=(Query(total(rate(catalog.CONTEXT_SWITCHES), "process", "kind"), _THREAD),),
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


def _gpu() -> tuple[Panel, ...]:
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
