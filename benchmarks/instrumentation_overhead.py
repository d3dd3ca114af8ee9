"""What the engine pays for being seen: the telemetry of a step and of a request, timed between real forward passes.

Warm loops flatter: between two forwards the caches are cold. So each section runs once after a forward pass of a small
torch model, in random order with an empty section as the floor, and medians of its thread CPU time are compared with
the median step. Uses the engine's own page writers.

    python benchmarks/instrumentation_overhead.py [--rounds 300] [--batch 16]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from instrumented_engine import wire
from instrumented_engine.api.timeline import Recorder, Timeline
from telemetry.layout import API, CORE
from telemetry.records import Repeats
from telemetry.scoreboard import Writer
from telemetry.stages import Phase

Section = Callable[[], None]


def step_section(page: Writer, batch: int) -> Section:
    """What the core's main and output threads write for one step of ``batch`` requests."""
    repeats = [Repeats() for _ in range(batch)]
    slots, index = page.slots, CORE.slot_index
    phase_started, phase_slot, tokens, steps = (
        index[name] for name in ("phase_started_ns", "phase", "step_tokens", "steps")
    )
    gauges = [index[name] for name in ("requests_waiting", "requests_running", "kv_blocks_used", "output_queue_depth")]
    sent_bytes, sent_ns, sent = (index[f"output_{name}"] for name in ("bytes_sent", "last_sent_ns", "messages_sent"))
    step, encode, send = (page.histogram(name) for name in ("step", "output_encode", "output_send_call"))

    def section() -> None:
        for phase in (Phase.INPUT, Phase.SCHEDULE, Phase.FORWARD, Phase.UPDATE):
            slots[phase_started] = time.time_ns()
            slots[phase_slot] = phase
        for repeated in repeats:
            repeated.add(4_000_000)
        slots[tokens] = batch
        slots[steps] += 1
        for gauge in gauges:
            slots[gauge] = 1
        for histogram in (step, encode, send):
            histogram.observe(4_000_000)
        slots[sent_bytes] += 500
        slots[sent_ns] = time.time_ns()
        slots[sent] += 1

    return section


def request_section(recorder: Recorder) -> Section:
    """What the API process does for one request: parse the parent, stamp, pack, write, count."""
    handover = wire.OutputHandover(1, time.time_ns(), time.time_ns())
    header = f"00-{'a' * 32}-{'b' * 16}-01"

    def section() -> None:
        timeline = Timeline(header, chat=True)
        recorder.started(timeline)
        timeline.output_received(handover, time.time_ns())
        timeline.finished(wire.Finished(1, "stop", [1, 2, 3, 4], (8, 80, 20)))
        timeline.status = 200
        recorder.ended(timeline)

    return section


def message_section(page: Writer, batch: int) -> Section:
    """What the API's receiver thread adds to one output message for ``batch`` requests."""
    timelines = [Timeline(None, chat=True) for _ in range(batch)]
    transit, decode = page.histogram("output_transit"), page.histogram("output_decode")
    handover = wire.OutputHandover(1, time.time_ns(), time.time_ns())
    slots = page.slots
    counters = [API.slot_index[f"output_{name}"] for name in ("bytes_received", "messages_received", "last_sequence")]
    received_ns = API.slot_index["output_last_received_ns"]

    def section() -> None:
        now = time.time_ns()
        for timeline in timelines:
            timeline.output_received(handover, now)
        transit.observe(100_000)
        decode.observe(20_000)
        for counter in counters:
            slots[counter] += 1
        slots[received_ns] = now

    return section


def measure(sections: dict[str, Section], rounds: int, forward: Section) -> tuple[dict[str, float], float]:
    """Median thread CPU µs of each section, and the median wall µs of a forward pass."""
    taken: dict[str, list[int]] = {name: [] for name in sections}
    steps = []
    order = list(sections)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            started = time.perf_counter_ns()
            forward()
            steps.append(time.perf_counter_ns() - started)
            begun = time.thread_time_ns()
            sections[name]()
            taken[name].append(time.thread_time_ns() - begun)
    medians = {name: statistics.median(values) / 1e3 for name, values in taken.items()}
    return medians, statistics.median(steps) / 1e3


def torch_forward(batch: int) -> Section:
    """A forward pass of about 4 ms on one thread."""
    torch.set_num_threads(1)
    layers = [torch.randn(512, 512) * 0.05 for _ in range(40)]
    hidden = torch.randn(batch, 512)

    @torch.inference_mode()
    def forward() -> None:
        x = hidden
        for layer in layers:
            x = torch.nn.functional.silu(x @ layer)

    return forward


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        api, core = Writer(Path(folder), API), Writer(Path(folder), CORE)
        sections: dict[str, Section] = {
            "nothing": lambda: None,
            "step": step_section(core, options.batch),
            "output message": message_section(api, options.batch),
            "request": request_section(Recorder(api)),
        }
        medians, step = measure(sections, options.rounds, torch_forward(options.batch))
    added = {name: value - medians["nothing"] for name, value in medians.items() if name != "nothing"}
    print(f"{os.cpu_count()} cores, batch {options.batch}, {options.rounds} rounds, step {step:.0f} us")
    print(f"{'section':16}{'us':>8}{'% of the step':>16}")
    for name, value in added.items():
        print(f"{name:16}{value:8.1f}{100 * value / step:16.2f}")
    result = {name.replace(" ", "_") + "_us": round(value, 2) for name, value in added.items()}
    print(json.dumps({"step_ms": round(step / 1e3, 2), **result, "step_share": round(added["step"] / step, 5)}))


if __name__ == "__main__":
    main()
