"""What the sidecar takes: CPU, memory and the time of a scrape, beside a working engine.

The whole sidecar as the command starts it, children included, watches the reference engine with the dummy model. The
engine holds idle connections and answers a steady stream of short completions; the metrics are scraped once a second
as OpenMetrics. CPU is user and system time over the window, memory the largest resident set seen at a scrape. The
scrape is timed before the connections are opened as well, since it must not depend on their number. At last the same
sampler runs thousands of samples in a row, its clock sped up, with every snapshot rendered: its memory must stay flat.

    python benchmarks/sidecar_footprint.py [--seconds 120] [--connections 1000] [--rate 50] [--samples 10000]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import json
import multiprocessing
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.clock import Clock
from sidecar.exposition import Exposition
from sidecar.kernel import procfs
from sidecar.sampler import TICK_SECONDS, TICKS_PER_SNAPSHOT, Sampler
from sidecar.target import parse_engine

_PROC = Path("/proc")
_ACCEPT = "application/openmetrics-text; version=1.0.0"
_BODY = json.dumps({"prompt": "hello", "max_tokens": 2, "temperature": 0, "ignore_eos": True})
_CLIENTS = 10
_START_SECONDS = 60.0
_SETTLE_SECONDS = 5.0
_BEFORE_SCRAPES = 20


def free_port() -> int:
    """A port that nobody uses right now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process in a group of its own, ended with all its children."""
    with log.open("wb") as output:
        started = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output, start_new_session=True)
    try:
        yield started
    finally:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(5)


def get(url: str) -> bytes:
    """The body of an answer."""
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": _ACCEPT}), timeout=10) as response:
        body: bytes = response.read()
        return body


def wait_for(url: str) -> None:
    """Return when the URL answers."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            get(url)
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{url} did not answer within {_START_SECONDS:.0f} s")
        time.sleep(0.1)


def load(port: int, connections: int, rate: float, ready: Any, stop: Any, answered: Any) -> None:
    """Hold idle connections, then send completions at a steady rate until told to stop."""
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    ready.set()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        due = time.monotonic() + number / rate
        while not stop.wait(max(due - time.monotonic(), 0)):
            connection.request("POST", "/v1/completions", _BODY, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            with answered.get_lock():
                answered.value += response.status == 200
            due += _CLIENTS / rate
        connection.close()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(_CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    for each in idle:
        each.close()


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    parents = {}
    for other in procfs.read_pids(_PROC):
        with contextlib.suppress(OSError, procfs.ProcfsError):
            parents[other] = procfs.read_stat(_PROC, other).parent
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its live children and of those it has waited for."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            words = (_PROC / str(one) / "stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(int(word) for word in words[11:15])
    return ticks / procfs.CLOCK_TICKS


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its children; shared pages count for each."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError, procfs.ProcfsError):
            total += procfs.read_stat(_PROC, one).resident_bytes
    return total


def private_bytes() -> int:
    """Resident memory of this process that is no file's (RssAnon)."""
    status = (_PROC / "self" / "status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def timed_scrape(url: str) -> tuple[float, int]:
    """Milliseconds and bytes of one scrape."""
    started = time.perf_counter()
    body = get(url)
    return (time.perf_counter() - started) * 1e3, len(body)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def accelerated(pid: int, runtime_dir: Path, samples: int) -> None:
    """Sample without a pause, the clock moved by hand; private memory in MB after a tenth of it, and at the end.

    Private, because the engine's pages count as resident as far as their rings have been read.
    """
    now = [time.monotonic()]
    clock = Clock(monotonic=lambda: now[0], thread_cpu=lambda: 0.0)
    sampler = Sampler(parse_engine(f"demo=pid:{pid}"), runtime_dir, clock=clock)
    exposition = Exposition(lambda: sampler.latest, "benchmark")
    private = []
    for number in range(samples):
        sampler.tick()
        now[0] += TICK_SECONDS
        if number % TICKS_PER_SNAPSHOT == 0:
            sampler.snapshot()
            exposition.answer(_ACCEPT)
        if number in (samples // 10, samples - 1):
            gc.collect()
            private.append(private_bytes() / 1e6)
    sampler.close()
    print(json.dumps(private))


def measure(settings: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run everything; the numbers of the window."""
    port, metrics_port = free_port(), free_port()
    url, runtime_dir = f"http://127.0.0.1:{metrics_port}/metrics", folder / "run"
    engine_flags = ["-m", "instrumented_engine", "--port", str(port), "--runtime-dir", str(runtime_dir)]
    sidecar_flags = ["-m", "sidecar", "--engine", f"demo=port:{port}", "--listen", f"127.0.0.1:{metrics_port}"]
    spawn = multiprocessing.get_context("spawn")
    ready, stop, answered = spawn.Event(), spawn.Event(), spawn.Value("q", 0)
    with contextlib.ExitStack() as started:
        engine = started.enter_context(process(*engine_flags, log=folder / "engine.log"))
        wait_for(f"http://127.0.0.1:{port}/health")
        sidecar_flags += ["--runtime-dir", str(runtime_dir)]
        sidecar = started.enter_context(process(*sidecar_flags, log=folder / "sidecar.log"))
        wait_for(url)
        time.sleep(_SETTLE_SECONDS)
        before = [timed_scrape(url)[0] for _ in range(_BEFORE_SCRAPES)]
        arguments = (port, settings.connections, settings.rate, ready, stop, answered)
        clients = spawn.Process(target=load, args=arguments, daemon=True)
        clients.start()
        try:
            if not ready.wait(_START_SECONDS):
                raise SystemExit("the connections could not be opened")
            time.sleep(_SETTLE_SECONDS)
            answered.value = 0
            scrapes, sizes, resident = [], [], []
            begun, cpu = time.monotonic(), cpu_seconds(sidecar.pid)
            while time.monotonic() < begun + settings.seconds:
                milliseconds, size = timed_scrape(url)
                scrapes.append(milliseconds)
                sizes.append(size)
                resident.append(resident_bytes(sidecar.pid))
                time.sleep(max(begun + len(scrapes) - time.monotonic(), 0))
            seconds, cpu = time.monotonic() - begun, cpu_seconds(sidecar.pid) - cpu
            rate = answered.value / seconds
            command = [sys.executable, __file__, "--accelerate", str(engine.pid), "--runtime-dir", str(runtime_dir)]
            command += ["--samples", str(settings.samples)]
            early, late = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        finally:
            stop.set()
            clients.join(60)
            clients.kill()
    return {
        "seconds": seconds,
        "requests_per_second": rate,
        "cpu_share": cpu / seconds,
        "rss_mb": max(resident) / 1e6,
        "scrape_p50_ms": statistics.median(scrapes),
        "scrape_p99_ms": percentile(scrapes, 0.99),
        "scrape_p99_ms_without_connections": percentile(before, 0.99),
        "scrape_bytes": max(sizes),
        "rss_mb_early": early,
        "rss_mb_late": late,
    }


def main() -> None:
    """Print a table, and one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50, help="completions a second")
    parser.add_argument("--samples", type=int, default=10_000, help="samples of the accelerated run")
    parser.add_argument("--accelerate", type=int, metavar="PID", help=argparse.SUPPRESS)
    parser.add_argument("--runtime-dir", type=Path, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.accelerate:
        accelerated(settings.accelerate, settings.runtime_dir, settings.samples)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="es-footprint-") as folder:
        found = measure(settings, Path(folder))
    rate = found["requests_per_second"]
    print(f"{settings.connections} connections, {rate:.1f} completions/s, {found['seconds']:.0f} s")
    print(f"{'CPU, share of a core':42}{100 * found['cpu_share']:8.2f} %")
    print(f"{'resident memory, largest':42}{found['rss_mb']:8.1f} MB")
    print(f"{'scrape, median':42}{found['scrape_p50_ms']:8.2f} ms   {found['scrape_bytes']:.0f} bytes")
    print(f"{'scrape, 99th percentile':42}{found['scrape_p99_ms']:8.2f} ms")
    print(f"{'  the same without connections':42}{found['scrape_p99_ms_without_connections']:8.2f} ms")
    print(
        f"{f'{settings.samples} samples without a pause, private':42}{found['rss_mb_early']:8.1f} MB at a tenth of them"
    )
    print(f"{'':42}{found['rss_mb_late']:8.1f} MB at the end")
    print(json.dumps({name: round(found[name], 4) for name in ("cpu_share", "rss_mb", "scrape_p99_ms")}))


if __name__ == "__main__":
    main()
