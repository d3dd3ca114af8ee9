"""Servers without pages: one that hangs is named from outside, one whose clients wait for good reasons is not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from sidecar.probe import Probe
from tests.conftest import eventually, free_port, running
from tests.integration.watcher import Watcher

pytestmark = pytest.mark.long
UNRESPONSIVE = ("engine_unresponsive", "engine")


@dataclass
class Server:
    """A running one, and the sockets of the clients that wait for it."""

    port: int
    pid: int
    waiting: list[socket.socket] = field(default_factory=list)

    def send(self, path: str) -> None:
        """A request whose answer is not read here."""
        client = socket.create_connection(("127.0.0.1", self.port), 10)
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        self.waiting.append(client)

    def get(self, path: str = "/") -> str:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=60).text


@contextlib.contextmanager
def server(kind: str, keep_alive: int = 60) -> Iterator[Server]:
    port = free_port()
    with running(sys.executable, "-m", "tests.integration.plain_server", kind, str(port), str(keep_alive)) as process:
        started = Server(port, process.pid)
        eventually("the server", lambda: answers(started))
        try:
            yield started
        finally:
            for client in started.waiting:
                client.close()


def answers(one: Server) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return one.get() == "ok"
    return False


def evidence(watcher: Watcher, key: tuple[str, str]) -> dict[str, float]:
    return next(fault.evidence for fault in watcher.sampler.faults if (fault.fault, fault.process) == key)


def is_named(watcher: Watcher, key: tuple[str, str], seconds: float = 60) -> dict[str, float]:
    """The evidence, once it is named; nothing else may have been."""
    started = time.monotonic()
    eventually(f"{key} to be named", lambda: key in watcher.now(), seconds)
    found = evidence(watcher, key)
    print(f"named {key[0]} after {time.monotonic() - started:.1f} s: {found}")
    assert {(fault.fault, fault.process) for _, fault in watcher.found} <= {key}
    return found


@pytest.mark.parametrize(
    ("kind", "path"),
    [("http.server", "/hang"), ("uvicorn", "/spin"), pytest.param("uvicorn", "/sleep", marks=pytest.mark.long)],
)
def test_a_server_that_reads_nobody_any_more_is_named(runtime_dir: Path, kind: str, path: str) -> None:
    with server(kind) as plain, Watcher(plain.port, runtime_dir, pages=0) as watcher:
        watcher.wait_for(lambda: watcher.metric("engine_up") == 1, "the server")
        assert watcher.metric("fault", fault="engine_unresponsive", process="engine") == 0
        see_an_act(plain, watcher)
        plain.send(path)
        time.sleep(1)
        assert watcher.now() == set()
        plain.send("/")
        found = is_named(watcher, UNRESPONSIVE)
        assert (found["outside_only"], found["confidence"]) == (1.0, 0.6)
        assert found["unaccepted"] + found["unread"] >= 1
        watcher.wait_for(
            lambda: watcher.metric("fault_evidence", fault=UNRESPONSIVE[0], process="engine", kind="outside_only") == 1,
            "what the judgement rests on",
        )


def see_an_act(plain: Server, watcher: Watcher) -> None:
    """Let the sidecar see the server answer: on a connection that stays, because one scan may miss a short one."""
    with httpx.Client(base_url=f"http://127.0.0.1:{plain.port}") as kept:
        eventually("an act to be seen", lambda: kept.get("/").text == "ok" and acts(watcher))


def acts(watcher: Watcher) -> int:
    facts = watcher.sampler._outside._watch.facts
    return facts.acts if facts else 0


def outputs(watcher: Watcher) -> int:
    facts = watcher.sampler._outside._watch.facts
    return facts.outputs if facts else 0


def test_a_stopped_server_is_named_as_stopped(runtime_dir: Path) -> None:
    with server("uvicorn") as plain, Watcher(plain.port, runtime_dir, pages=0) as watcher:
        watcher.wait_for(lambda: watcher.metric("engine_up") == 1, "the server")
        os.kill(plain.pid, signal.SIGSTOP)
        plain.send("/")
        try:
            assert is_named(watcher, ("process_frozen", "engine"))["outside_only"] == 1.0
        finally:
            os.kill(plain.pid, signal.SIGCONT)


def test_waiting_for_good_reasons_is_no_fault(runtime_dir: Path) -> None:
    """Long polls, a stream of events, connections kept alive and silent ones; then nobody at all."""
    with server("uvicorn") as plain, Watcher(plain.port, runtime_dir, pages=0) as watcher:
        port = {"port": str(plain.port), "role": "http"}
        see_an_act(plain, watcher)
        with httpx.Client(base_url=f"http://127.0.0.1:{plain.port}") as kept:
            assert kept.get("/").text == "ok"
            silent = [socket.create_connection(("127.0.0.1", plain.port)) for _ in range(5)]
            threads = [threading.Thread(target=plain.get, args=(path,)) for path in ("/poll", "/poll", "/events")]
            for thread in threads:
                thread.start()
            watcher.wait_for(lambda: (watcher.metric("connections_unanswered", **port) or 0) >= 2, "the polls")
            assert (watcher.metric("connections", **port, state="established") or 0) >= 9
            for thread in threads:
                thread.join(60)
            time.sleep(6)
            for one in silent:
                one.close()
        time.sleep(6)
        assert watcher.found == []


def test_a_probe_that_nobody_answers_names_the_engine(runtime_dir: Path) -> None:
    with server("uvicorn") as plain:
        probe = Probe(f"http://127.0.0.1:{plain.port}/")
        with Watcher(plain.port, runtime_dir, pages=0, probe=probe) as watcher:
            watcher.wait_for(lambda: watcher.metric("probe_up") == 1, "an answered probe")
            assert watcher.now() == set()
            plain.send("/sleep")
            found = is_named(watcher, UNRESPONSIVE)
            watcher.wait_for(lambda: watcher.metric("probe_up") == 0, "the unanswered probe")
            assert found["outside_only"] == 1.0


def test_requests_that_are_read_and_never_answered_are_named(runtime_dir: Path) -> None:
    """The loop runs, and what it waits for never comes: as with a dead engine behind a living API process."""
    with server("uvicorn") as plain, Watcher(plain.port, runtime_dir, pages=0) as watcher:
        with httpx.Client(base_url=f"http://127.0.0.1:{plain.port}") as kept:
            eventually("an answer to be seen", lambda: kept.get("/").text == "ok" and outputs(watcher))
        for _ in range(3):
            plain.send("/lost")
        found = is_named(watcher, UNRESPONSIVE, 180)
        assert (found["confidence"], found["unanswered"]) == (0.3, 3)


def test_answers_that_were_cut_off_are_named_where_the_keep_alive_is_known(runtime_dir: Path) -> None:
    """A first part came and the rest never does: only an engine's own keep-alive tells that from an idle connection."""
    with server("uvicorn", 5) as plain, Watcher(plain.port, runtime_dir, pages=0, keep_alive=5) as watcher:
        with httpx.Client(base_url=f"http://127.0.0.1:{plain.port}") as kept:
            eventually("an answer to be seen", lambda: kept.get("/").text == "ok" and outputs(watcher))
        with contextlib.ExitStack() as idle:
            for _ in range(2):
                client = idle.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{plain.port}"))
                assert client.get("/").text == "ok"
                plain.send("/cut")
            found = is_named(watcher, UNRESPONSIVE, 240)
        assert (found["confidence"], found["unanswered"]) == (0.3, 2), "the server closed the idle ones itself"
