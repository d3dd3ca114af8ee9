"""A machine made of a case file: a /proc tree, and a kernel that answers dumps, with the sidecar's sampler on it."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.clock import Clock
from sidecar.kernel.inet_diag import TcpState
from sidecar.kernel.netlink import DiagSocket
from sidecar.metrics import families
from sidecar.sampler import Sampler
from sidecar.target import parse_engine
from tests.unit.sidecar.oracle import InetSocket, done, error, fake_opener, inet_message

Case = dict[str, Any]
CASES = Path(__file__).parents[1] / "cases"
_LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \n"
_START = 10_000.0
_PER_DATAGRAM = 100


def load(name: str) -> Case:
    """One case file."""
    case: Case = yaml.safe_load((CASES / f"{name}.yaml").read_text())
    return case


def names(kind: str) -> list[str]:
    """Every case of this kind."""
    return sorted(path.stem for path in CASES.glob("*.yaml") if load(path.stem)["kind"] == kind)


def variants(case: Case) -> list[Case]:
    """The machines of a case: itself, or one for each variant."""
    return [case | one for one in case.get("variants", [{}])]


@dataclass
class Machine:
    """What the case says at one moment."""

    root: Path
    processes: dict[int, Case]
    moment: Case = field(default_factory=dict)
    _next: int = 900_000

    def show(self, moment: Case) -> None:
        """Become what the moment says; what it leaves out stays."""
        self.moment = self.moment | moment
        self._next = 900_000
        self._inets = list(self._rows(self.moment.get("sockets", [])))
        (self.root / "self" / "net").mkdir(parents=True, exist_ok=True)
        (self.root / "self" / "fd").mkdir(exist_ok=True)
        (self.root / "stat").write_text("btime 1790000000\n")
        (self.root / "self" / "stat").write_bytes(_stat(77, {"comm": "sidecar"}))
        self._write_counters(self.root / "self", self.moment.get("counters", {}))
        for name, value in self.moment.get("sysctls", {}).items():
            path = self.root / "sys" / "net" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        gone = self.moment.get("gone", [])
        for pid, process in self.processes.items():
            directory = self.root / str(pid)
            if pid in gone:
                for path in sorted(directory.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
                directory.rmdir()
                continue
            self._write_process(directory, pid, process | self.moment.get("processes", {}).get(pid, {}))

    def _write_process(self, directory: Path, pid: int, process: Case) -> None:
        descriptors = directory / "fd"
        descriptors.mkdir(parents=True, exist_ok=True)
        (directory / "net").mkdir(exist_ok=True)
        (directory / "stat").write_bytes(_stat(pid, process))
        command = process.get("command", ["python3", "-m", "engine"])
        (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))
        limit = process.get("limit", 1024)
        (directory / "limits").write_text(f"{_LIMITS}Max open files            {limit}  1048576  files\n")
        counters: Case = self.moment.get("counters_of_engine") or self.moment.get("counters") or {}
        self._write_counters(directory, counters)
        sockets = [*process.get("listens", []), *(one.inode for one in self._inets if one.inode >= 900_000)]
        links = [f"socket:[{inode}]" for inode in sockets]
        links += [target for target, n in process.get("links", {}).items() for _ in range(n)]
        wanted = process.get("open_files", len(links))
        links = links[:wanted] + ["/tmp/file"] * (wanted - len(links))
        (directory / "environ").write_text(
            "".join(f"{name}={value}\0" for name, value in process.get("environ", {}).items())
        )
        for path in descriptors.iterdir():
            path.unlink()
        for number, target in enumerate(links):
            (descriptors / str(number)).symlink_to(target)
        for kind, namespace in process.get("namespaces", {}).items():
            (directory / "ns").mkdir(exist_ok=True)
            if not (directory / "ns" / kind).is_symlink():
                (directory / "ns" / kind).symlink_to(namespace)

    def _write_counters(self, directory: Path, counters: Case) -> None:
        for name, section in (("netstat", "TcpExt"), ("snmp", "Tcp")):
            path = directory / "net" / name
            if "raw" in counters:
                path.write_text(str(counters["raw"]))
                continue
            own = {key: value for key, value in counters.items() if (key in _OF_SNMP) == (section == "Tcp")}
            words = f"{section}: {' '.join(own)}\n{section}: {' '.join(map(str, own.values()))}\n"
            path.write_text(words if own else "")

    def _rows(self, rows: list[Case]) -> Any:
        for row in rows:
            state = TcpState[row["state"].upper()]
            address, family = _address(row.get("local", "0.0.0.0"))
            peer, _ = _address(row.get("peer", "0.0.0.0"))
            make = partial(
                InetSocket,
                state=int(state),
                receive=row.get("receive", 0),
                send=row.get("send", 0),
                family=family,
                address=address,
                peer_address=peer,
                drops=row.get("drops", 0) if state is TcpState.LISTEN else None,
                extras=((11, b"\0"),) if family == socket.AF_INET6 else (),
            )
            for number in range(row.get("n", 1)):
                self._next += 1
                unowned = state in (TcpState.TIME_WAIT, TcpState.SYN_RECEIVED) or row.get("accepted") is False
                inode = row.get("inode", 0 if unowned else self._next)
                port = row["port"] if "port" in row else row["first_port"] + number
                yield make(port=port, inode=inode, cookie=self._next, peer_port=row.get("peer_port", 40000))

    def answer(self, table: str, request: bytes) -> list[bytes]:
        """The kernel's reply to a dump, for the namespace's table of sockets."""
        if self.moment.get("refuses"):
            return [error(self.moment["refuses"])]
        if request[0] == socket.AF_UNIX:
            return [done()]
        states = struct.unpack_from("=I", request, 4 if request[0] in (socket.AF_INET, socket.AF_INET6) else 52)[0]
        own = self._inets if table == "engine" else list(self._rows(self.moment.get("sockets_elsewhere", [])))
        messages = [inet_message(one) for one in own if states >> one.state & 1]
        return [*(b"".join(messages[at : at + _PER_DATAGRAM]) for at in range(0, len(messages), _PER_DATAGRAM)), done()]


class World:
    """A machine, the sampler on it, and its clock."""

    def __init__(self, case: Case, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        proc = root / "proc"
        proc.mkdir()
        self.machine = Machine(proc, case.get("processes", {}))
        self.now = _START
        self._looking = False
        entered = any("net" in process.get("namespaces", {}) for process in self.machine.processes.values())
        if entered:
            (proc / "self" / "ns").mkdir(parents=True)
            (proc / "self" / "ns" / "net").symlink_to("net:[1]")
            opener = fake_opener(partial(self.machine.answer, "engine"))
            monkeypatch.setattr("sidecar.namespaces.open_sock_diag_of", lambda *_: _with_number(opener()))
        self._hide_descriptors(monkeypatch)
        own = DiagSocket(fake_opener(partial(self.machine.answer, "own" if entered else "engine")))
        clock = Clock(lambda: self.now, lambda: int(self.now * 1e9), lambda: 0.0)
        self.sampler = Sampler(parse_engine(f"demo={case['engine']}"), root / "pages", proc, clock, own)

    def _hide_descriptors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Root may see everything, so the refusal is ours."""

        def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
                for pid in self.machine.moment.get("hidden", []) if self._looking else []:
                    if isinstance(path, str | Path) and f"/proc/{pid}/fd" in str(path):
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
                return original(path, *arguments, **options)

            return call

        for name in ("open", "scandir", "listdir", "stat", "readlink"):
            monkeypatch.setattr(os, name, guarded(getattr(os, name)))

    def look(self, moment: Case) -> dict[str, float]:
        """What the sidecar exports at a moment, by ``name{label=value}``."""
        self.machine.show(moment)
        self.now = _START + moment.get("at", 0)
        self._looking = True
        for _ in range(3):
            self.sampler.tick()
            self.sampler.snapshot()
            self.now += 1
        self._looking = False
        assert self.sampler.latest is not None
        found = {}
        for family in families(self.sampler.latest, "test"):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name.removeprefix('enginescope_')}{{{labels}}}".removesuffix("{}")] = sample.value
        return found


_OF_SNMP = {
    "ActiveOpens",
    "PassiveOpens",
    "AttemptFails",
    "EstabResets",
    "OutRsts",
    "OutSegs",
    "RetransSegs",
    "MaxConn",
}


def _stat(pid: int, process: Case) -> bytes:
    state, parent, threads = process.get("state", "S"), process.get("parent", 1), process.get("threads", 1)
    numbers = [parent, *[0] * 15, threads, 0, process.get("ticks", 100), 0, 5]
    return b"%d (%s) %s %s\n" % (pid, process.get("comm", "x").encode(), state.encode(), _words(numbers))


def _words(numbers: list[int]) -> bytes:
    return " ".join(map(str, numbers)).encode()


def _address(text: str) -> tuple[bytes, int]:
    """As the kernel writes it, and the family of its row."""
    address = ip_address(text)
    return address.packed, socket.AF_INET if address.version == 4 else socket.AF_INET6


def _with_number(opened: Any) -> Any:
    opened.fileno = lambda: 99
    return opened


def matching(samples: dict[str, float], pattern: str) -> dict[str, float]:
    """The exported samples whose name and labels begin so."""
    return {name: value for name, value in samples.items() if re.match(pattern, name)}
