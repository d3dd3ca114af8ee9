"""What drills do to the network of a stack that has one of its own: settings, lost packets, a slow link, floods.

All of it is put back on exit. ``NEEDS = "namespace"`` in a drill says that it may only run on such a stack.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from enginescope.drill import DrillError
from enginescope.isolation import DEVICE, PEER_ADDRESS, SILENT_NETWORK, STACK_ADDRESS, IsolationError, in_peer
from enginescope.stack import Stack

LARGE_REQUEST: Final = b"GET /openapi.json HTTP/1.1\r\nHost: drill\r\n\r\n"
"""What the engine answers with tens of kilobytes."""

_REQUESTS_AT_ONCE: Final = 200
_COMMAND_SECONDS: Final = 10
_SYN: Final = 0x02
_WINDOW: Final = 64240
_FIRST_PORT: Final = 1024


def require_own_network(stack: Stack) -> None:
    """Refuse a stack that shares its network with anything else.

    Raises:
        DrillError: it does.
    """
    if not stack.peer_namespace:
        raise DrillError(
            "this drill changes a whole network and the stack shares the host's: start `enginescope up "
            "--network-namespace`"
        )


@contextmanager
def at_peer(stack: Stack) -> Iterator[None]:
    """Act at the other end of the stack's network; sockets that are made there stay there.

    Raises:
        DrillError: there is none, or we may not enter it.
    """
    require_own_network(stack)
    try:
        with in_peer(stack):
            yield
    except IsolationError as error:
        raise DrillError(str(error)) from error


@contextmanager
def sysctls(stack: Stack, **values: int | str) -> Iterator[None]:
    """Give the stack's network other settings, such as ``ipv4__tcp_syncookies=0``; the old ones on exit.

    Raises:
        DrillError: the stack shares the host's network, or the kernel has no such setting or refuses the value.
    """
    require_own_network(stack)
    paths = {Path("/proc/sys/net", *name.split("__")): str(value) for name, value in values.items()}
    try:
        before = {path: path.read_text() for path in paths}
        try:
            for path, value in paths.items():
                path.write_text(value)
            yield
        finally:
            for path, value in before.items():
                path.write_text(value)
    except OSError as error:
        raise DrillError(f"cannot set {error.filename}: {error.strerror}") from error


def run(*command: str, text: str = "") -> None:
    """Run a program that changes the network.

    Raises:
        DrillError: it is missing, or the kernel lacks what it asks for; the message has its own words.
    """
    if shutil.which(command[0]) is None:
        raise DrillError(f"the program {command[0]} is missing")
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())
        raise DrillError(f"`{' '.join(command)}` failed, perhaps because the kernel lacks it: {words}")


@contextmanager
def repeated(call: Callable[[int], None], per_second: float) -> Iterator[None]:
    """Call with 0, 1, 2, … from a thread at a steady rate.

    Raises:
        DrillError: on exit, when a call failed.
    """
    stop, failures = threading.Event(), list[Exception]()

    def loop() -> None:
        number = 0
        try:
            while not stop.wait(1 / per_second):
                call(number)
                number += 1
        except (OSError, DrillError) as error:
            failures.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise DrillError(f"the drill could not go on: {failures[0]}")


@contextmanager
def syn_flood(stack: Stack, per_second: float) -> Iterator[None]:
    """Send the engine SYNs from the peer, from addresses that will never answer its SYN-ACKs.

    Raises:
        DrillError: no right to make raw packets.
    """
    try:
        with at_peer(stack):
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    except PermissionError as error:
        raise DrillError("raw packets need CAP_NET_RAW in the stack's network namespace") from error
    first = int(IPv4Network(SILENT_NETWORK)[1])

    def send(number: int) -> None:
        source = IPv4Address(first + number % 0xFF00)
        raw.sendto(syn(source, _FIRST_PORT + number % 0xF000, stack.ports["engine"]), (STACK_ADDRESS, 0))

    with raw, repeated(send, per_second):
        yield


def syn(source: IPv4Address, source_port: int, port: int) -> bytes:
    """An IPv4 packet that asks the stack's address for a connection (RFC 791, RFC 9293)."""
    addresses = source.packed + IPv4Address(STACK_ADDRESS).packed
    segment = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 5 << 4, _SYN, _WINDOW, 0, 0)
    checksum = _checksum(addresses + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(segment)) + segment)
    segment = segment[:16] + struct.pack("!H", checksum) + segment[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, socket.IPPROTO_TCP, 0)
    return header + addresses + segment  # the kernel fills in the header's checksum


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@contextmanager
def losing(stack: Stack, percent: int) -> Iterator[None]:
    """Lose so many of the packets that the engine sends to the peer, at the peer's input.

    Raises:
        DrillError: nft is missing, or the kernel's nftables with it.
    """
    port = stack.ports["engine"]
    rule = (
        "table ip drill {\nchain lose {\ntype filter hook input priority 0;\n"
        f"ip saddr {STACK_ADDRESS} tcp sport {port} numgen random mod 100 < {percent} drop\n}}\n}}\n"
    )
    with at_peer(stack):
        run("nft", "-f", "-", text=rule)
    try:
        yield
    finally:
        with at_peer(stack):
            run("nft", "delete", "table", "ip", "drill")


@contextmanager
def client(stack: Stack, timeout: float = 5.0) -> Iterator[socket.socket]:
    """A connection from the peer to the engine.

    Raises:
        DrillError: the engine does not take it.
    """
    with at_peer(stack):
        made = socket.socket()
    with made:
        made.settimeout(timeout)
        try:
            made.connect((STACK_ADDRESS, stack.ports["engine"]))
        except OSError as error:
            raise DrillError(f"cannot connect from {PEER_ADDRESS} to the engine: {error}") from error
        yield made


@contextmanager
def slow_link(stack: Stack, rate: str) -> Iterator[None]:
    """Let the engine's interface send no faster than a rate such as ``4mbit`` (tc-tbf(8)).

    Raises:
        DrillError: tc is missing, or the kernel's token bucket filter with it.
    """
    require_own_network(stack)
    run("tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", rate, "burst", "32kb", "limit", "32mb")
    try:
        yield
    finally:
        run("tc", "qdisc", "del", "dev", DEVICE, "root")


@contextmanager
def readers(stack: Stack, count: int) -> Iterator[None]:
    """So many clients at the peer that ask the engine for a large document again and again, and read it.

    Raises:
        DrillError: no right to act at the peer.
    """
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with suppress(OSError, DrillError), client(stack, timeout=2.0) as connection:
                connection.sendall(LARGE_REQUEST * _REQUESTS_AT_ONCE)
                while not stop.is_set() and connection.recv(1 << 16):
                    pass

    threads = [threading.Thread(target=read, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
