"""CPU time of one look at all connections of an engine: the sidecar's, the floor's, and that of other tools.

The floor is a C program that sends the same requests and only receives. Everybody looks at the same sockets, in turns,
in a network namespace of their own; medians of CPU time, user and system, children included. What the sidecar's scan
says is first compared with a slow reading of the same dump.

    python benchmarks/kernel_snapshot.py --connections 10000 [--rounds 15]

Needs root, or user namespaces, and a C compiler. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from sidecar.connections import Connections  # noqa: E402
from sidecar.kernel.connection_rows import DETAIL  # noqa: E402
from sidecar.kernel.inet_diag import LONG_ROWS, SHORT_ROWS, tcp_request  # noqa: E402
from sidecar.kernel.netlink import TCPDIAG_GETSOCK, DiagSocket, open_sock_diag  # noqa: E402
from tests.unit.sidecar.tcp_oracle import INFO_ENDS, read_tcp, summary  # noqa: E402

Look = Callable[[], float]
"""One look; returns its milliseconds of CPU time."""

INSIDE = "ENGINESCOPE_BENCHMARK_NAMESPACE"
SLOW_SECONDS = 0.7
"""A tool whose first look takes longer gets few rounds."""
FEW_ROUNDS = 3
EXPORTER_PORT = 19100
_AGES = ("unanswered_oldest", "silent")


def enter_namespace() -> None:
    """Start this program anew in a network namespace with a loopback interface."""
    if os.environ.get(INSIDE):
        return
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = 'ip link set lo up && exec "$@"'
    command = ["unshare", *user, "--net", "sh", "-c", script, "sh", sys.executable, *sys.argv]
    os.execvpe(command[0], command, os.environ | {INSIDE: "1"})


@contextlib.contextmanager
def load(connections: int) -> Iterator[list[int]]:
    """The connections; yields the ports they were accepted on."""
    command = [sys.executable, str(ROOT / "benchmarks" / "connection_load.py"), "--connections", str(connections)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if words[:1] != ["ready"]:
        raise SystemExit("the load did not come up")
    try:
        yield [int(word) for word in words[1:]]
    finally:
        process.stdin.close()
        process.wait()


# --- who looks


def served(*words: str) -> Look:
    """A process that looks once for each line and answers with nanoseconds of CPU time."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answer = process.stdin, process.stdout

    def look() -> float:
        ask.write("\n")
        ask.flush()
        return int(answer.readline().split()[0]) / 1e6

    if words[0] == sys.executable and answer.readline() != "ready\n":
        raise SystemExit(f"{words[-1]} did not start")
    return look


def looker(name: str, ports: list[int]) -> Look:
    """One of ``lookers.py``."""
    return served(sys.executable, str(ROOT / "benchmarks" / "lookers.py"), name, *map(str, ports))


def floor(directory: Path, ports: list[int], extensions: int) -> Look:
    """The C program, compiled here and now, with the requests of the sidecar."""
    binary = directory / "dump_floor"
    if not binary.exists():
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-o", binary, ROOT / "benchmarks" / "dump_floor.c"], check=True)
    dumps = [f"{LONG_ROWS}:{extensions}", f"{SHORT_ROWS}:0"]
    return served(str(binary), *dumps, "--", *map(str, ports))


def command(*words: str) -> Look:
    """A program that is started for each look."""

    def look() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3

    return look


@contextlib.contextmanager
def node_exporter() -> Iterator[Look | None]:
    """Scrapes of node_exporter with nothing but its tcpstat collector, where it is installed."""
    found = [shutil.which("node_exporter"), shutil.which("prometheus-node-exporter")]
    found += [str(path) for path in sorted((ROOT / ".tools").glob("**/*node*exporter")) if path.is_file()]
    binary = next((path for path in found if path), None)
    if binary is None:
        yield None
        return
    flags = ["--collector.disable-defaults", "--collector.tcpstat", f"--web.listen-address=127.0.0.1:{EXPORTER_PORT}"]
    process = subprocess.Popen([binary, *flags], stderr=subprocess.DEVNULL)
    clock = ~process.pid << 3 | 2  # clock_getcpuclockid(3)

    def look() -> float:
        started = time.clock_gettime(clock)
        with urllib.request.urlopen(f"http://127.0.0.1:{EXPORTER_PORT}/metrics", timeout=60) as response:
            if b'node_tcp_connection_states{state="established"}' not in response.read():
                raise SystemExit("node_exporter tells no connection states")
        return (time.clock_gettime(clock) - started) * 1e3

    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                look()
                break
            time.sleep(0.1)
        yield look
    finally:
        process.kill()
        process.wait()


# --- is it right


def check(diag: DiagSocket, ports: list[int], expected: int) -> int:
    """Compare a detailed scan with a slow reading of the same sockets; returns how many there are."""
    roles = dict.fromkeys(ports, "http")
    for _ in range(5):
        before = {port: stable(sample) for port, sample in slow_reading(ports).items()}
        samples = Connections().scan(diag, roles, time.monotonic(), True)
        found = {sample.port: stable(dataclasses.asdict(sample)) for sample in samples}
        if all(equal(found[port], before[port]) for port in ports):
            total = sum(sample.states["established"] for sample in samples)
            if total != expected:
                raise SystemExit(f"{total} established connections where {expected} should be")
            return total
    port = next(port for port in ports if not equal(found[port], before[port]))
    raise SystemExit(f"the scan differs from the slow reading: {found[port]} {before[port]}")


def slow_reading(ports: list[int]) -> dict[int, dict[str, Any]]:
    """The same dumps, message by message with ``struct``."""
    sockets = []
    for states, extensions in ((LONG_ROWS, DETAIL), (SHORT_ROWS, 0)):
        with open_sock_diag() as netlink:
            request = tcp_request(states, extensions, ports)
            length = (16 + len(request)).to_bytes(4, sys.byteorder)
            kind = TCPDIAG_GETSOCK.to_bytes(2, sys.byteorder)
            netlink.send(length + kind + (0x301).to_bytes(2, sys.byteorder) + bytes(8) + request)
            data = b""
            while data[-20:][4:6] != b"\x03\x00" or data[-20:][:4] != (20).to_bytes(4, sys.byteorder):
                data += netlink.recv(1 << 16)
        sockets += list(read_tcp(data))
    roles = dict.fromkeys(ports, "http")
    by_port: dict[int, list[Any]] = {port: [] for port in ports}
    for one in sockets:
        by_port[one.base.port].append(one)
    return {port: summary(by_port[port], port, roles, INFO_ENDS) for port in ports}


def stable(sample: dict[str, Any]) -> dict[str, Any]:
    """Without the ages that go on between two dumps."""
    for end in sample["ends"].values():
        for age in _AGES:
            del end["detail"][age]
    return sample


def equal(found: Any, expected: Any) -> bool:
    """The same but for the rounding of floating-point sums."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(equal(found[name], expected[name]) for name in expected)
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9)
    return bool(found == expected)


# --- the measurement


def measure(looks: dict[str, Look], rounds: int) -> dict[str, list[float]]:
    """All in turns, so that a busy moment of the machine hits everybody; the first round warms up and is left out."""
    taken: dict[str, list[float]] = {name: [] for name in looks}
    slow = set()
    for number in range(rounds + 1):
        for name, look in looks.items():
            if name in slow and len(taken[name]) >= FEW_ROUNDS:
                continue
            milliseconds = look()
            if number:
                taken[name].append(milliseconds)
            elif milliseconds > SLOW_SECONDS * 1e3:
                slow.add(name)
    return taken


def report(connections: int, taken: dict[str, list[float]]) -> None:
    """The table, and the JSON line."""
    medians = {name: statistics.median(values) for name, values in taken.items()}
    print(f"{connections} connections; CPU milliseconds per snapshot")
    print(f"{'':24}{'median':>10}{'least':>10}{'rounds':>8}{'x floor':>9}{'x ours':>9}")
    versus = {}
    for name, median in medians.items():
        mine = "ours, full" if name in AGAINST_FULL else "ours, plain"
        base = "floor, full" if name in AGAINST_FULL else "floor, plain"
        ratio = f"{median / medians[mine]:9.2f}" if name not in ("floor, plain", "floor, full") else ""
        print(
            f"{name:38}{median:10.2f}{min(taken[name]):10.2f}{len(taken[name]):8}{median / medians[base]:9.2f}{ratio}"
        )
        if not name.startswith(("ours", "floor")):
            versus[name] = round(median / medians[mine], 2)
    result = {
        "connections": connections,
        "ours_plain_over_floor": round(medians["ours, plain"] / medians["floor, plain"], 3),
        "ours_full_over_floor": round(medians["ours, full"] / medians["floor, full"], 3),
        "peers_over_ours": versus,
    }
    print(json.dumps(result))


AGAINST_FULL = ("floor, full", "ours, full", "ss -tinH", "pyroute2", "node_exporter tcpstat")
"""Those that ask the kernel for TCP_INFO."""


def main() -> None:
    """Set the load up, check, measure, tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    enter_namespace()
    diag = DiagSocket()
    with (
        load(options.connections) as ports,
        tempfile.TemporaryDirectory() as directory,
        node_exporter() as exporter,
    ):
        checked = check(diag, ports, options.connections)
        print(f"a full scan equals the slow reading of the same dump: {checked} connections on {len(ports)} ports")
        looks: dict[str, Look | None] = {
            "floor, plain": floor(Path(directory), ports, 0),
            "ours, plain": looker("ours-plain", ports),
            "floor, full": floor(Path(directory), ports, DETAIL),
            "ours, full": looker("ours-full", ports),
            "ss -tanH": command("ss", "-tanH"),
            "ss -tinH": command("ss", "-tinH"),
            "ss -tanpH": command("ss", "-tanpH"),
            "psutil": looker("psutil", ports),
            "pyroute2": looker("pyroute2", ports) if find_spec("pyroute2") else None,
            "node_exporter tcpstat": exporter,
        }
        found = {name: look for name, look in looks.items() if look is not None}
        for name in looks.keys() - found.keys():
            print(f"{name} is not installed and is left out")
        report(options.connections, measure(found, options.rounds))


if __name__ == "__main__":
    main()
