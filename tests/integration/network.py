"""Network namespaces with processes in them, the sidecar's own sampler on one of them, and ``ss`` beside it."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sidecar.clock import Clock
from sidecar.metrics import families
from sidecar.sampler import Sampler
from sidecar.snapshot import Snapshot
from sidecar.target import parse_engine
from telemetry.catalog import NETNS_COUNTERS
from tests.integration.sidecar_harness import Processes, Samples, Victim

SECONDS = 20.0
DEVICE = "es0"
_TICK = 0.5
_STATES = {
    "ESTAB": "established",
    "SYN-SENT": "syn_sent",
    "SYN-RECV": "syn_received",
    "FIN-WAIT-1": "fin_wait_1",
    "FIN-WAIT-2": "fin_wait_2",
    "TIME-WAIT": "time_wait",
    "CLOSE-WAIT": "close_wait",
    "LAST-ACK": "last_ack",
    "LISTEN": "listen",
    "CLOSING": "closing",
}


@dataclass(frozen=True)
class Row:
    """One socket as ``ss`` prints it."""

    state: str
    receive: int
    send: int
    port: int
    peer_port: int
    text: str

    def number(self, pattern: str) -> float:
        """The number behind a word such as ``notsent:``; 0 where ``ss`` leaves it out."""
        found = re.search(rf"(?<![\w]){pattern}([0-9.]+)", self.text)
        return float(found[1]) if found else 0.0

    @property
    def drops(self) -> int:
        found = re.search(r"skmem:\([^)]*,d(\d+)\)", self.text)
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class UnixRow:
    """One unix socket as ``ss`` prints it."""

    state: str
    receive: int
    send: int
    name: str
    inode: int
    peer: int


class Host(Victim):
    """A process in a network namespace of its own; the namespace goes with it."""

    def __init__(self, processes: Processes, prefix: tuple[str, ...] = ("unshare", "--net")) -> None:
        super().__init__(processes, prefix)
        self("raise_loopback()")  # answered from inside the namespace

    def beside(self, processes: Processes) -> Host:
        """Another process in the same namespace, such as a client that is not the engine."""
        return Host(processes, ("nsenter", f"--net=/proc/{self.process.pid}/ns/net"))

    def run(self, *command: str) -> str:
        """What a command prints in this namespace."""
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", *command],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ss(self, port: int | None = None) -> list[Row]:
        """TCP sockets of the namespace, those of one local port when given."""
        expression = [] if port is None else [f"sport = :{port}"]
        rows = []
        for line in self.run("ss", "-tanHOeim", *expression).splitlines():
            state, receive, send, local, peer = line.split()[:5]
            peer_port = peer.rpartition(":")[2]
            rows.append(
                Row(
                    _STATES.get(state, state),
                    int(receive),
                    int(send),
                    int(local.rpartition(":")[2]),
                    int(peer_port) if peer_port.isdecimal() else 0,
                    line,
                )
            )
        return rows

    def ss_unix(self, path: Path) -> list[UnixRow]:
        """Unix stream sockets with that name, and the connecting ends of those."""
        rows = []
        for line in self.run("ss", "-xanH").splitlines():
            kind, state, receive, send, name, inode, _, peer = line.split()[:8]
            if kind == "u_str":
                rows.append(UnixRow(_STATES.get(state, state), int(receive), int(send), name, int(inode), int(peer)))
        bound = [row for row in rows if row.name == str(path)]
        peers = {row.peer for row in bound if row.peer}
        return bound + [row for row in rows if row.inode in peers]

    def counters(self) -> dict[str, int]:
        """The exported counters as ``nstat`` prints them."""
        found = {}
        for line in self.run("nstat", "-asz").splitlines()[1:]:
            name, value, _ = line.split()
            found[re.sub("^(TcpExt|Tcp)", "", name)] = int(value)
        return {name: found[name] for name in NETNS_COUNTERS if name in found}


def connect_hosts(left: Host, right: Host) -> tuple[str, str]:
    """Join two namespaces by a veth pair; the address of each."""
    pids = str(left.process.pid), str(right.process.pid)
    made = ["ip", "link", "add", DEVICE, "netns", pids[0], "type", "veth", "peer", "name", DEVICE, "netns", pids[1]]
    subprocess.run(made, check=True, timeout=30)
    addresses = "10.80.0.1", "10.80.0.2"
    for host, address in zip((left, right), addresses, strict=True):
        host.run("ip", "address", "add", f"{address}/24", "dev", DEVICE)
        host.run("ip", "link", "set", DEVICE, "up")
    return addresses


def samples_of(snapshot: Snapshot) -> Samples:
    """What a snapshot exports, by ``name{label=value}``, in the harness's form."""
    found = {}
    for family in families(snapshot, "test"):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('enginescope_')}{{{labels}}}".removesuffix("{}")] = sample.value
    return found


class Watcher:
    """The sidecar's sampler on one host; every look is a snapshot, and one second of its clock."""

    def __init__(self, host: Host, runtime_dir: Path, port: int, **endpoints: str) -> None:
        host(f"page('{runtime_dir}', 'api', {endpoints | {'http': f'127.0.0.1:{port}'}})")
        self.host, self.port = host, port
        self.labels = f"{{port={port},role=http}}"
        self.now = 1000.0
        clock = Clock(monotonic=lambda: self.now, thread_cpu=lambda: 0.0)
        self.sampler = Sampler(parse_engine(f"demo=pid:{host.process.pid}"), runtime_dir, clock=clock)
        self.snapshot = self.sampler.snapshot()
        assert self.snapshot.visible["network_namespace"]

    def look(self, seconds: float = 1.0) -> Samples:
        steps = max(round(seconds / _TICK), 1)
        for _ in range(steps):  # a longer gap would say that the sampler was starved
            self.now += seconds / steps
            self.sampler.tick()
        self.snapshot = self.sampler.snapshot()
        failed = [name for name, run in self.snapshot.collectors.items() if not run.success]
        assert not failed, failed
        return samples_of(self.snapshot)

    def wait(self, condition: Callable[[Samples], bool]) -> Samples:
        """The first look that fulfils the condition; a missing sample is only not there yet."""
        deadline = time.monotonic() + SECONDS
        while True:
            seen = self.look()
            try:
                if condition(seen):
                    return seen
            except KeyError as missing:
                if time.monotonic() > deadline:
                    raise AssertionError(f"no sample {missing} within {SECONDS} s: {self._own(seen)}") from missing
            assert time.monotonic() < deadline, f"not seen within {SECONDS} s: {self._own(seen)}"
            time.sleep(0.02)

    def _own(self, seen: Samples) -> Samples:
        kinds = ("listener_", "connection", "netns_", "close_wait", "send_", "receive_", "queue_", "ephemeral")
        return {name: value for name, value in seen.items() if name.startswith(kinds) and "bucket" not in name}

    def port_facts(self, seen: Samples) -> dict[str, float]:
        """What ``ss`` prints too, as the sidecar exports it."""
        prefix = f"connections{{port={self.port},role=http,state="
        states = {name[len(prefix) : -1]: value for name, value in seen.items() if name.startswith(prefix)}
        facts = {f"state {state}": value for state, value in states.items() if value}
        accepted = f"{{kind=accepted,port={self.port},role=http}}"
        for name in ("connection_unacked_segments", "connection_unsent_bytes"):
            facts[name] = seen.get(name + accepted, 0)
        facts["close_wait_sockets"] = seen.get(f"close_wait_sockets{{kind=owned,port={self.port},role=http}}", 0)
        queues = "receive_queue_bytes", "send_queue_bytes", "receive_queue_max_bytes", "send_queue_max_bytes"
        for name in (*queues, "connections_unaccepted"):
            facts[name] = seen.get(name + self.labels, 0)
        for name in ("accept_queue_depth", "accept_queue_limit"):
            facts[name] = seen.get(f"listener_{name}{self.labels}", 0)
        return facts | {
            name: seen[metric.name.removeprefix("enginescope_")]
            for name, metric in NETNS_COUNTERS.items()
            if metric.name.removeprefix("enginescope_") in seen
        }

    def ss_facts(self) -> dict[str, float]:
        """The same as ``ss`` and ``nstat`` print it."""
        rows = self.host.ss(self.port)
        listeners = [row for row in rows if row.state == "listen"]
        others = [row for row in rows if row.state != "listen"]
        facts: dict[str, float] = {f"state {state}": n for state, n in Counter(row.state for row in others).items()}
        complete = ("established", "close_wait")
        held = [row for row in others if row.number("ino:") or row.state in complete]  # no orphans
        facts["receive_queue_bytes"] = sum(row.receive for row in held)
        facts["send_queue_bytes"] = sum(row.send for row in held)
        waiting = [row for row in held if not row.number("ino:")]
        facts["connections_unaccepted"] = len(waiting)
        facts["accept_queue_depth"] = sum(row.receive for row in listeners)
        facts["accept_queue_limit"] = sum(row.send for row in listeners)
        owned = [row for row in held if row.number("ino:")]
        facts["send_queue_max_bytes"] = max((row.send for row in owned), default=0)
        facts["receive_queue_max_bytes"] = max((row.receive for row in owned), default=0)
        facts["connection_unacked_segments"] = sum(row.number("unacked:") for row in held)
        facts["connection_unsent_bytes"] = sum(row.number("notsent:") for row in held)
        facts["close_wait_sockets"] = sum(row.state == "close_wait" for row in owned)
        return facts | self.host.counters()

    def agrees_with_ss(self) -> Samples:
        """The first look that says what ``ss`` and ``nstat`` say right before and right after it."""
        deadline = time.monotonic() + SECONDS
        while True:
            before, seen, after = self.ss_facts(), self.look(), self.ss_facts()
            facts = self.port_facts(seen)
            if before == facts == after:
                return seen
            differences = {
                name: (before.get(name), facts.get(name), after.get(name))
                for name in sorted(before.keys() | facts.keys())
                if not before.get(name) == facts.get(name) == after.get(name)
            }
            assert time.monotonic() < deadline, f"ss, the sidecar, ss again: {differences}"
