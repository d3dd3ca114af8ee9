"""Drills that take sockets from a process behind its back, and drills that change a network: done, and put back."""

from __future__ import annotations

import errno
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from alerts.lab import syn
from alerts.listener_not_accepting import drill as listener_not_accepting
from alerts.listener_vanished import drill as listener_vanished
from alerts.receive_queue_stuck import drill as receive_queue_stuck
from alerts.send_queue_stuck import drill as send_queue_stuck
from enginescope import drill
from enginescope.borrow import borrow_connection, borrow_listener
from enginescope.probe import is_ready
from enginescope.stack import Stack
from tests.conftest import eventually, free_port
from tests.integration.small_stack import HOST, process, rows
from tests.integration.test_isolation import isolated

LISTEN, BACKLOG = "0A", 77
API = f"""
import asyncio, sys
from pathlib import Path
from telemetry.layout import API
from telemetry.scoreboard import Writer

async def serve(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 40000\\r\\n\\r\\n" + b"x" * 40000)
        await writer.drain()

async def main():
    server = await asyncio.start_server(serve, "{HOST}", int(sys.argv[2]), backlog={BACKLOG})
    print("listening", flush=True)
    await server.serve_forever()

writer = Writer(Path(sys.argv[1]), API)
asyncio.run(main())
"""
OWN_NETWORK = (
    "syn_queue_full",
    "listen_sysctl_unsafe",
    "retransmits_high",
    "ephemeral_ports_exhausted",
    "time_wait_storm",
    "conntrack_full",
    "slow_interface",
)
LAB = """
import sys
from pathlib import Path
from alerts.lab import at_peer, losing, readers, run, slow_link, syn_flood, sysctls
from enginescope.drill import DrillError
from enginescope.isolation import enter
from enginescope.stack import Stack
from tests.conftest import eventually
import subprocess

stack = Stack.load(sys.argv[1])
enter(stack)
cookies = Path("/proc/sys/net/ipv4/tcp_syncookies")
before = cookies.read_text()

def half_open():
    return sum(line.split()[3] == "03" for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:])

def shown(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

try:
    with sysctls(stack, ipv4__tcp_syncookies=0, ipv4__tcp_synack_retries=1), syn_flood(stack, 200):
        assert cookies.read_text() == "0\\n"
        eventually("half-open connections", lambda: half_open() >= 32)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    assert cookies.read_text() == before, "an interrupt left the setting behind"

try:
    with sysctls(stack, ipv4__no_such_setting=1):
        pass
except DrillError as error:
    assert "no_such_setting" in str(error)
else:
    raise AssertionError("a setting that the kernel lacks was set")

with losing(stack, 10):
    with at_peer(stack):
        assert "drop" in shown("nft", "list", "ruleset")
with at_peer(stack):
    assert shown("nft", "list", "ruleset") == ""
with slow_link(stack, "4mbit"):
    assert "tbf" in shown("tc", "qdisc", "show")
assert "tbf" not in shown("tc", "qdisc", "show")

try:
    run("tc", "qdisc", "add", "dev", "lo", "root", "nonsense")
except DrillError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError("nonsense was accepted")
print("well")
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as started:
        port = free_port()  # asked for by number, as an engine's is: the kernel takes others back when nobody listens
        api = started.enter_context(process(sys.executable, "-c", API, str(tmp_path), str(port)))
        assert api.stdout is not None
        assert api.stdout.readline() == "listening\n"
        yield Stack(os.getpid(), "chat", {"engine": port}, {"engine": api.pid}, str(tmp_path))


def listeners(port: int) -> int:
    return sum(row[3] == LISTEN for row in rows(port))


def queued(port: int, place: int) -> list[int]:
    """Bytes in the queues of the port's connections: to be sent (0) or received (2)."""
    return [int(row[4].partition(":")[place], 16) for row in rows(port) if row[3] == "01"]


def drain(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == errno.ECONNREFUSED


@pytest.mark.parametrize("module", [listener_vanished, listener_not_accepting])
def test_a_listener_is_taken_and_given_back(stack: Stack, module: drill.Drill) -> None:
    pid, port = stack.pids["engine"], stack.ports["engine"]
    with socket.create_connection((HOST, port), 5) as early, module.inject(stack):
        assert listeners(port) == 0
        assert refused(port)
        early.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert early.recv(100), "a connection from before goes on"
    assert listeners(port) == 1
    assert is_ready(port, "/health")
    with borrow_listener(pid, port).socket as listener:
        assert int.from_bytes(listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)[28:32], "little") == BACKLOG


def test_a_listener_comes_back_after_an_interrupt(stack: Stack) -> None:
    with pytest.raises(KeyboardInterrupt), listener_not_accepting.inject(stack):
        raise KeyboardInterrupt
    assert is_ready(stack.ports["engine"], "/health")


def test_an_unwatched_connection_is_not_read_until_it_is_watched_again(stack: Stack) -> None:
    pid, port = stack.pids["engine"], stack.ports["engine"]
    with socket.create_connection((HOST, port), 5) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(1), "it was accepted and is read"
        client.settimeout(1)
        borrowed = borrow_connection(pid, port, client.getsockname()[1])
        with borrowed.socket:
            watch = borrowed.unwatch()
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(TimeoutError):
                drain(client)
            watch()
            client.settimeout(10)
            assert client.recv(1)


def test_what_is_sent_stays_unread(stack: Stack) -> None:
    port = stack.ports["engine"]
    with receive_queue_stuck.inject(stack):
        eventually("four full receive queues", lambda: sum(size > 16000 for size in queued(port, 2)) == 4)
    assert is_ready(port, "/health")


def test_what_is_asked_for_stays_untaken(stack: Stack) -> None:
    port = stack.ports["engine"]
    with send_queue_stuck.inject(stack):
        eventually("six full send queues", lambda: sum(size > 0 for size in queued(port, 0)) == 6)
    assert is_ready(port, "/health")


def test_a_socket_that_is_not_there_is_one_sentence(stack: Stack) -> None:
    with pytest.raises(drill.DrillError, match=r"has no listening socket of port 1\b"):
        borrow_listener(stack.pids["engine"], 1)
    with pytest.raises(drill.DrillError, match="no connection from port 1"):
        borrow_connection(stack.pids["engine"], stack.ports["engine"], 1)


@pytest.mark.parametrize("name", OWN_NETWORK)
def test_the_hosts_network_is_left_alone(stack: Stack, name: str) -> None:
    module = importlib.import_module(f"alerts.{name}.drill")
    assert "namespace" in module.NEEDS
    with pytest.raises(drill.DrillError, match="--network-namespace"), module.inject(stack):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_network_is_changed_and_put_back(tmp_path: Path) -> None:
    with isolated(tmp_path):
        command = [sys.executable, "-c", LAB, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "well"


def test_the_packets_of_a_flood_are_what_the_kernel_would_send() -> None:
    packet = syn(IPv4Address("10.80.0.1"), 1024, 8000)
    assert len(packet) == 40
    words = [int.from_bytes(packet[place : place + 2], "big") for place in range(12, 40, 2)]
    total = sum(words) + socket.IPPROTO_TCP + 20
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF, "the checksum over pseudo header and segment is not right"
