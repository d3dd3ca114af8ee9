"""What real machines do to a scan: broken dumps, processes that vanish in it, and sockets that look like others."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.clock import Clock
from sidecar.collectors import Visibility
from sidecar.kernel import procfs
from sidecar.kernel.connection_rows import read_rows
from sidecar.kernel.inet_diag import LISTENER, TcpState, read_listeners
from sidecar.kernel.netlink import DiagSocket, NetlinkError
from sidecar.listeners import ListenerOwners, ListenerTracker
from sidecar.processes import ProcessTracker
from sidecar.sampler import Sampler
from sidecar.snapshot import Snapshot
from sidecar.target import EngineSpec, Member
from tests.unit.case_world import Case, World
from tests.unit.sidecar.oracle import HEADER, InetSocket, done, error, fake_opener, inet_message, stamp

Script = Sequence[Sequence[bytes]]
INTERRUPTED = inet_message(InetSocket(1, 10), flags=0x12)
GOOD = (inet_message(InetSocket(3, 10)), done())


class Kernel:
    """The other end of a real socket; answers one request after the other as the script says."""

    def __init__(self, script: Script, pause: float = 0.0) -> None:
        self._script = iter(script)
        self._pause = pause
        self._threads: list[threading.Thread] = []
        self.opened = 0

    def open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(3)
        self.opened += 1
        self._threads.append(threading.Thread(target=self._serve, args=(theirs,)))
        self._threads[-1].start()
        return ours

    def _serve(self, end: socket.socket) -> None:
        with end, contextlib.suppress(OSError):
            while request := end.recv(4096):
                sequence = HEADER.unpack_from(request)[3]
                for datagram in next(self._script, ()):
                    time.sleep(self._pause)
                    if not datagram:
                        return
                    end.send(stamp(datagram, sequence))

    def join(self) -> None:
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()


@pytest.fixture
def kernel() -> Iterator[Callable[..., tuple[Kernel, DiagSocket]]]:
    started: list[tuple[Kernel, DiagSocket]] = []

    def start(script: Script, pause: float = 0.0) -> tuple[Kernel, DiagSocket]:
        kernel = Kernel(script, pause)
        started.append((kernel, DiagSocket(kernel.open)))
        return started[-1]

    yield start
    for kernel, diag in started:
        diag.close()
        kernel.join()


StartKernel = Callable[..., tuple[Kernel, DiagSocket]]


# --- dumps that go wrong, over a real socket


@pytest.mark.parametrize(
    ("bad", "sockets"),
    [
        ([INTERRUPTED, done()], 1),
        ([error(errno.ENOBUFS)], 2),
        ([error(errno.EINTR)], 2),
        ([inet_message(InetSocket(2, 10)), error(errno.ENOBUFS)], 2),
    ],
)
def test_broken_dumps_are_done_again_counted_and_never_mixed(
    kernel: StartKernel, bad: list[bytes], sockets: int
) -> None:
    served, diag = kernel([bad, GOOD, GOOD])
    assert read_listeners(diag)["port"].tolist() == [3]
    assert (diag.retries, served.opened) == (1, sockets)
    assert read_listeners(diag)["port"].tolist() == [3]
    assert diag.retries == 1


def test_a_kernel_that_never_gets_it_right_is_an_error_after_four_attempts(kernel: StartKernel) -> None:
    served, diag = kernel([[error(errno.ENOBUFS)]] * 10)
    with pytest.raises(NetlinkError, match="No buffer space"):
        read_listeners(diag)
    assert (diag.retries, served.opened) == (3, 4)


def test_a_dump_that_ends_in_the_middle_is_an_error_and_not_a_hang(kernel: StartKernel) -> None:
    _, diag = kernel([[inet_message(InetSocket(2, 10)), b""], GOOD])
    with pytest.raises(NetlinkError):
        read_listeners(diag)
    assert read_listeners(diag)["port"].tolist() == [3]


def test_signals_during_a_dump_cost_nothing(kernel: StartKernel) -> None:
    _, diag = kernel([[inet_message(InetSocket(port, 10)) for port in range(1, 41)] + [done()]], pause=0.005)
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        ports = read_listeners(diag)["port"].tolist()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ports == list(range(1, 41))
    assert len(seen) > 10
    assert diag.retries == 0


# --- a process that vanishes while it is looked at

_TWO: Case = {
    "engine": "port:8000",
    "processes": {
        410: {"listens": [9100], "environ": {"A": "b"}},
        411: {"parent": 410, "links": {"pipe:[1]": 3}},
    },
}
_MOMENT: Case = {
    "counters": {"ListenOverflows": 3},
    "sockets": [{"state": "listen", "port": 8000, "send": 9, "inode": 9100}],
}


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESRCH])
def test_a_process_may_vanish_at_any_step_of_a_scan(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its n-th access on, /proc/411 is gone; n grows until a whole scan gets through."""
    accesses = 0
    allowed: int | None = None

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            nonlocal accesses
            if isinstance(path, str | Path) and "/proc/411/" in f"{path}/":
                accesses += 1
                if allowed is not None and accesses > allowed:
                    raise OSError(code, os.strerror(code), str(path))
            return original(path, *arguments, **options)

        return call

    def scan() -> Snapshot:
        nonlocal accesses
        accesses = 0
        world.now += 70.0  # everything is due
        world.sampler.tick()
        return world.sampler.snapshot()

    world = World(_TWO, tmp_path, monkeypatch)
    assert world.look(_MOMENT)["process_up{process=worker}"] == 1
    for module, name in ((os, "open"), (os, "scandir"), (os, "listdir"), (os, "stat"), (os, "readlink")):
        monkeypatch.setattr(module, name, guarded(getattr(module, name)))
    for module in (io, builtins):
        monkeypatch.setattr(module, "open", guarded(module.open))
    for step in range(500):
        allowed = step
        snapshot = scan()
        if accesses <= step:
            break
        assert [name for name, run in snapshot.collectors.items() if not run.success] == [], step
        assert {sample.pid for sample in snapshot.processes} >= {410}, step
        assert all(snapshot.visible.values()), step
        allowed = None
        scan()
    assert step > 5
    assert {sample.pid for sample in scan().processes} == {410, 411}
    world.sampler.close()


# --- pids, inodes and addresses that repeat


def test_a_pid_used_again_does_not_bring_its_numbers_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = {"engine": "pid:410", "processes": {410: {"ticks": 100, "open_files": 7}}}
    world = World(case, tmp_path, monkeypatch)
    assert world.look({})["process_open_fds{process=engine}"] == 7
    seen = world.look({"at": 10, "processes": {410: {"ticks": 900, "open_files": 70, "command": ["/bin/other"]}}})
    assert seen["engine_up"] == 0
    assert seen["process_up{process=engine}"] == 0
    assert "process_open_fds{process=engine}" not in seen
    assert seen["process_starts_total{process=engine}"] == 1
    world.sampler.close()


def test_a_process_that_was_replaced_since_the_target_was_resolved_is_left_out() -> None:
    tracker = ProcessTracker(Path("/proc"), Visibility())
    ticks = procfs.read_stat(Path("/proc"), os.getpid()).start_ticks
    tracker.collect([Member(os.getpid(), ticks, "engine")], ())
    assert [sample.pid for sample in tracker.samples] == [os.getpid()]
    cpu = tracker.cpu_seconds["engine"]
    tracker.collect([Member(os.getpid(), ticks + 1, "engine")], ())
    assert [sample.pid for sample in tracker.samples] == []
    assert (tracker.up, tracker.cpu_seconds["engine"]) == ({"engine": False}, cpu)


def test_ipv4_clients_of_a_dual_stack_listener_are_counted_once() -> None:
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        port = server.getsockname()[1]
        clients = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
        clients.append(opened.enter_context(socket.create_connection(("::1", port))))
        accepted = [opened.enter_context(server.accept()[0]) for _ in range(3)]
        assert len(accepted) == 3
        diag = DiagSocket()
        opened.callback(diag.close)
        rows = read_listeners(diag)
        (listener,) = rows[rows["port"] == port]
        assert int(listener["depth"]) == 1
        counts = read_rows(diag, [port], [], 0).counts[0, TcpState.ESTABLISHED]
        assert counts.tolist() == [1, 3]  # nobody's yet, and owned


ROW = st.tuples(st.sampled_from([80, 81]), st.integers(1, 50), st.integers(0, 9), st.integers(1, 9), st.integers(0, 5))


@given(st.lists(ROW, unique_by=lambda row: row[1], max_size=8), st.lists(ROW, max_size=8))
def test_rows_without_an_inode_never_shadow_a_live_listener(
    live: list[tuple[int, ...]], orphans: list[tuple[int, ...]]
) -> None:
    """A listener that is being closed shows its last row without an inode."""

    def rows(values: list[tuple[int, ...]], owned: bool) -> list[tuple[int, ...]]:
        return [
            (port, inode if owned else 0, inode + (0 if owned else 10_000), depth, limit, drops)
            for port, inode, depth, limit, drops in values
        ]

    own = {row[1] for row in live}
    owners = ListenerOwners(Path("/nonexistent"), Visibility())
    owners.owned, owners.foreign = own, {0}
    alone = ListenerTracker(80).observe(np.array(rows(live, owned=True), LISTENER), owners)
    both = np.array(rows(orphans, owned=False) + rows(live, owned=True), LISTENER)
    assert ListenerTracker(80).observe(both, owners) == alone


@given(
    st.lists(st.sampled_from([1, 8]), max_size=6),
    st.lists(st.sampled_from([1, 3, 4, 5, 6, 8, 9, 11]), max_size=12),
)
def test_rows_without_an_inode_never_shadow_a_live_connection(live: list[int], orphans: list[int]) -> None:
    """TIME_WAIT and half-open rows, orphans and unaccepted ones all show inode 0, and some of them cookie 0."""
    sockets = [InetSocket(80, state, inode=0, cookie=0, receive=1) for state in orphans]
    sockets += [InetSocket(80, state, inode=number + 1, cookie=0, receive=1) for number, state in enumerate(live)]
    long = [one for one in sockets if one.state not in (3, 6)]
    short = [one for one in sockets if one.state in (3, 6)]

    def answer(request: bytes) -> list[bytes]:
        states = int.from_bytes(request[52:56], "little")
        return [b"".join(inet_message(one) for one in (*long, *short) if states >> one.state & 1) + done()]

    counts = read_rows(DiagSocket(fake_opener(answer)), [80], [], 0).counts[0]
    for state in range(1, 12):
        assert counts[state].tolist() == [orphans.count(state), live.count(state)]


# --- twenty thousand descriptors

_MANY = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
read, _ = os.pipe()
count = min(hard, 20000) - 100
for _ in range(count): os.dup(read)
print(len(os.listdir("/proc/self/fd")) - 1, flush=True)
sys.stdin.read()
"""


def test_twenty_thousand_descriptors_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    engine = subprocess.Popen(
        [sys.executable, "-S", "-c", _MANY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert engine.stdout is not None
        count = int(engine.stdout.readline())
        assert count > min(hard, 20_000) - 200
        now = [1000.0]
        clock = Clock(monotonic=lambda: now[0])
        sampler = Sampler(EngineSpec("demo", pid=engine.pid), tmp_path, clock=clock)
        links = 0
        readlink: Callable[..., str] = os.readlink

        def counted(*arguments: Any, **options: Any) -> str:
            nonlocal links
            links += 1
            return readlink(*arguments, **options)

        def step() -> int:
            """Descriptors whose kind is known."""
            nonlocal links
            links = 0
            now[0] += 10
            sampler.tick()
            found = sampler.snapshot().facts.fds
            return sum(found[0].kinds.values()) if found else 0

        monkeypatch.setattr(os, "readlink", counted)
        assert any(step() == count for _ in range(500)), "the kinds were never complete"
        step()
        assert sampler.latest is not None
        (sample,) = sampler.latest.processes
        assert sample.open_fds == count
        (found,) = sampler.latest.facts.fds
        assert (found.unread, sum(found.kinds.values())) == (0, count)
        assert found.kinds["pipe"] > count - 10
        assert links < 300, "every descriptor was looked at before"
        sampler.close()
    finally:
        engine.kill()
        engine.communicate()
