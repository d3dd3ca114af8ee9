"""The sampler over thousands of samples while processes and sockets come and go beside it.

The sampler's clock is sped up, so that a minute of its life takes seconds; ``SOAK_SECONDS=600`` makes it longer.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.clock import Clock
from sidecar.exposition import OPENMETRICS, Exposition
from sidecar.kernel import procfs
from sidecar.sampler import TICK_SECONDS, TICKS_PER_SNAPSHOT, Sampler
from sidecar.target import parse_engine
from tests.integration.network import samples_of
from tests.integration.sidecar_harness import ROOT

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("SOAK_SECONDS", "10"))
PROC = Path("/proc")
# A process that opens and closes listeners, connections, pipes and children of its own until its input ends.
CHURN = """
import os, pathlib, select, socket, subprocess, sys, tempfile
from telemetry.layout import API, CORE
from telemetry.scoreboard import Writer

runtime_dir, pages = pathlib.Path(sys.argv[1]), []
def listener(family, address):
    opened = socket.socket(family); opened.bind(address); opened.listen(3); return opened
fixed = listener(socket.AF_INET, ("127.0.0.1", 0))
print(fixed.getsockname()[1], flush=True)
kept, round = [], 0
with tempfile.TemporaryDirectory() as folder:
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        round += 1
        one = listener(socket.AF_INET, ("127.0.0.1", 0)) if round % 3 else fixed
        client = socket.create_connection(one.getsockname())
        server = one.accept()[0]
        client.send(b"x" * (round % 700))
        path = f"{folder}/{round % 5}-{round}"
        unix = listener(socket.AF_UNIX, path)
        kept += [client, server, unix, *os.pipe()] + ([one] if one is not fixed else [])
        if round % 50 == 0:
            subprocess.run(["true"], check=False)
        if round % 100 == 1:  # as if the engine had started anew: its pages count from 0 again
            for page in pages:
                page.close()
            pages = [Writer(runtime_dir, layout, generation=round) for layout in (API, CORE)]
        pages[0]["requests_ok"] += 1
        while len(kept) > round % 90:
            gone = kept.pop(0)
            os.close(gone) if isinstance(gone, int) else gone.close()
        os.unlink(path)
os._exit(0)
"""


@pytest.fixture
def churn(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHURN, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_memory_and_descriptors_stay_flat_and_counters_never_go_back(
    churn: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert churn.stdout is not None
    port = int(churn.stdout.readline())
    now = [1000.0]
    clock = Clock(lambda: now[0], lambda: int(now[0] * 1e9), lambda: 0.0)
    sampler = Sampler(parse_engine(f"demo=port:{port}"), tmp_path, clock=clock)
    exposition = Exposition(lambda: sampler.latest, "soak")
    counters: dict[str, float] = {}
    marks: list[tuple[int, int, int]] = []  # blocks that Python holds, resident bytes, descriptors
    snapshots = 0
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + SECONDS:
            for _ in range(TICKS_PER_SNAPSHOT):
                now[0] += TICK_SECONDS
                sampler.tick()
            snapshot = sampler.snapshot()
            snapshots += 1
            assert [name for name, run in snapshot.collectors.items() if not run.success] == []
            if snapshots % 5 == 0:
                assert exposition.answer(OPENMETRICS)[0].endswith(b"# EOF\n")
                seen = samples_of(snapshot)
                totals = {name: value for name, value in seen.items() if is_counter(name)}
                back = {
                    name: (counters[name], totals[name])
                    for name in counters.keys() & totals
                    if totals[name] < counters[name]
                }
                assert back == {}
                counters |= totals
            if time.monotonic() - begun > SECONDS * (len(marks) + 1) / 5:
                marks.append(measure())
    finally:
        sampler.close()
    assert sampler.latest is not None
    assert sampler.latest.engine_up
    assert snapshots > 4 * SECONDS
    held, resident, descriptors = (list(column) for column in zip(*marks, strict=True))
    print(f"{snapshots} snapshots; Python blocks {held}, resident bytes {resident}, descriptors {descriptors}")
    # The churn holds up to ninety sockets more at one mark than at another; a leak grows with every snapshot.
    assert held[-1] - held[1] < 3000, held
    assert resident[-1] - resident[1] < 6_000_000, resident
    assert descriptors[-1] <= descriptors[1] + 2, descriptors
    assert counters["requests_total{outcome=ok}"] > 100
    assert counters["netns_active_opens_total"] > 0
    assert threading.active_count() < 5


def is_counter(name: str) -> bool:
    """Ports without a role are forgotten with their listener; the next one of that number counts from 0."""
    return name.partition("{")[0].endswith(("_total", "_bucket", "_count")) and "role=other" not in name


def measure() -> tuple[int, int, int]:
    gc.collect()
    return (
        sys.getallocatedblocks(),
        procfs.read_stat(PROC, "self").resident_bytes,
        descriptor_count(),
    )


def descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_engines_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    """Hundreds of engines, one after the other, on one port of a listener that is made anew each time."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    now = [1000.0]
    sampler = Sampler(parse_engine(f"demo=port:{port}"), tmp_path, clock=Clock(monotonic=lambda: now[0]))
    sizes, descriptors = [], []
    code = "import socket,sys; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); print('', flush=True); input()"
    rounds = int(min(10 * max(SECONDS / 12, 1), 200))
    for _ in range(rounds):
        engine = subprocess.Popen(
            [sys.executable, "-S", "-c", code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert engine.stdout is not None
        engine.stdout.readline()
        for _ in range(3):
            now[0] += 61  # an owner that was not found is looked for ever more rarely
            sampler.tick()
            sampler.snapshot()
        assert sampler.latest is not None
        assert len(sampler.latest.processes) == 1
        engine.kill()
        engine.communicate()
        now[0] += 61
        sampler.tick()
        assert not sampler.snapshot().engine_up
        descriptors.append(descriptor_count())
        sizes.append(len(sampler._processes.starts) + len(sampler._listeners._ports) + len(sampler._owners.owned))
    assert sampler.latest is not None
    assert sampler.latest.engine_found == rounds
    assert sampler.latest.process_starts == {"engine": rounds}
    print(f"{rounds} engines; descriptors {descriptors[0]} to {descriptors[-1]}")
    assert sizes[-1] == sizes[0]
    assert descriptors[-1] == descriptors[0]
    sampler.close()
