"""The third dashboard: queues, threads and loops inside the engine, read from its shared memory."""

from __future__ import annotations

from typing import Final

from dashboards.limits import limit
from dashboards.machine import gpu, processes
from dashboards.model import Dashboard, Kind, Limit, Panel, Query, Row
from dashboards.places import INTERNALS
from dashboards.promql import age, heat, highest, mean, quantile, rate, series, total
from dashboards.words import (
    HEALTHY_COUNT,
    HEALTHY_STATE,
    NONE_IS_GOOD,
    ONLY_WHEN_BAD,
    THERE,
    THREAD,
)
from telemetry import catalog

_FROZEN: Final = f'{catalog.FAULT_SECONDS.name}{{fault="process_frozen",process!~"exporter|worker.*"}}'
"""What the alert of a frozen process looks at."""
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
            Row("What changed?", processes()),
            Row("GPU", gpu()),
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
            Query(f"min by (process, kind) ({series(catalog.THREAD_UP)})", f"{THREAD} thread"),
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
        queries=(Query(highest(age(catalog.HEARTBEAT), "process", "kind"), THREAD),),
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
            title="Messages that nobody receives",
            says="Messages that one process sent and the other has not received, and for how long it received none. "
            "ZMQ holds them in user memory, where no kernel queue shows them.",
            unit="short",
            queries=(
                Query(total(series(catalog.OUTPUT_UNRECEIVED)), "outputs"),
                Query(highest(series(catalog.OUTPUT_UNRECEIVED_AGE)), "outputs: age", unit="s"),
                Query(total(series(catalog.INPUT_UNRECEIVED)), "inputs"),
                Query(highest(series(catalog.INPUT_UNRECEIVED_AGE)), "inputs: age", unit="s"),
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
