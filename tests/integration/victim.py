"""A small engine to watch: does what its standard input says, one Python expression a line, and answers with JSON.

Run by the tests as ``python -m tests.integration.victim``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from telemetry.layout import LAYOUTS
from telemetry.scoreboard import Writer
from tests.integration.half_open import open_tun, send_last_acks, send_syns

_kept: list[Any] = []
_releases: list[threading.Event] = []


def raise_loopback() -> None:
    """A new network namespace has its loopback interface down."""
    with socket.socket() as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def listen(port: int = 0, backlog: int = 16, reuse: bool = False, address: str = "127.0.0.1") -> int:
    opened = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    option = socket.SO_REUSEPORT if reuse else socket.SO_REUSEADDR
    opened.setsockopt(socket.SOL_SOCKET, option, 1)
    opened.bind((address, port))
    if backlog >= 0:
        opened.listen(backlog)
    _kept.append(opened)
    return int(opened.getsockname()[1])


def accept_all() -> int:
    """Empty the accept queue. Not every client comes again: one may think that it is connected already."""
    _kept[0].settimeout(0)
    count = 0
    while True:
        try:
            _kept.append(_kept[0].accept()[0])
        except BlockingIOError:
            return count
        count += 1


def begin_to_listen() -> None:
    _kept[0].listen(5)


def connect(port: int, count: int) -> None:
    _kept.extend(socket.create_connection(("127.0.0.1", port)) for _ in range(count))


def half_open(port: int, count: int) -> None:
    _kept.append(tun := open_tun())
    send_syns(tun, port, count)


def finish_handshakes(port: int, count: int) -> None:
    """Send the last ACK of connections that ``half_open`` began; the tun device is the last thing kept."""
    send_last_acks(_kept[-1], port, count)


def begin(address: str, port: int, count: int) -> list[int]:
    """Begin connections and wait for none; errno of each (EINPROGRESS where it is on its way)."""
    errors = []
    for _ in range(count):
        client = socket.socket()
        client.settimeout(0)
        errors.append(client.connect_ex((address, port)))
        _kept.append(client)
    return errors


def dial(address: str, port: int) -> int:
    """Connect and wait; 0, or the errno of the failure."""
    client = socket.socket()
    client.settimeout(10)
    _kept.append(client)
    return client.connect_ex((address, port))


def accept(count: int) -> None:
    """Accept from the first listener."""
    _kept[0].settimeout(10)
    _kept.extend([_kept[0].accept()[0] for _ in range(count)])


def fill(one: socket.socket) -> int:
    """Send until the socket takes no more; bytes sent."""
    one.settimeout(0)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += one.send(bytes(65536))
    return sent


def drain(one: socket.socket, count: int) -> None:
    """Receive so many bytes."""
    one.settimeout(10)
    while count > 0:
        count -= len(one.recv(min(count, 65536)))


def read_along(one: socket.socket) -> None:
    """Receive everything from now on, in a thread."""
    one.settimeout(None)
    threading.Thread(target=lambda: all(iter(lambda: one.recv(65536), b"")), daemon=True).start()


def set_sysctl(name: str, value: str) -> None:
    """Of this network namespace."""
    (Path("/proc/sys/net") / name).write_text(value)


def close_listener() -> None:
    _kept.pop(0).close()


def truth() -> list[tuple[int, int]]:
    """Depth and limit of each listener by TCP_INFO (tcpi_unacked, tcpi_sacked)."""
    info = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32) for one in _kept if isinstance(one, socket.socket)]
    return [struct.unpack_from("=2I", raw, 24) for raw in info]


def page(directory: str, role: str, endpoints: dict[str, str], **slots: int) -> None:
    writer = Writer(Path(directory), LAYOUTS[role])
    writer.set_endpoints(endpoints)
    for slot, value in slots.items():
        writer[slot] = value
    _kept.append(writer)


def queue_unix(path: str, count: int) -> None:
    listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    client.connect(path)
    client.send(b"x" * count)
    _kept.extend((listener, client, listener.accept()[0]))


def begin_thread() -> int:
    """A thread that waits; its native id."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=True)
    thread.start()
    _releases.append(release)
    assert thread.native_id is not None
    return thread.native_id


def end_threads() -> None:
    for release in _releases:
        release.set()


def open_kinds(count: int) -> None:
    """As many pipes (two descriptors each), eventfds and epolls."""
    for _ in range(count):
        _kept.extend((os.pipe(), os.eventfd(0), select.epoll()))


def listen_unix(path: str, backlog: int) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(backlog)
    _kept.append(listener)


def connect_unix(path: str, count: int) -> None:
    for _ in range(count):
        _kept.append(client := socket.socket(socket.AF_UNIX))
        client.connect(path)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(eval(line)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
