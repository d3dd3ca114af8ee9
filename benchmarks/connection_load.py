"""Connections on loopback for benchmarks: each has carried a request and its answer, some have bytes queued.

    python benchmarks/connection_load.py --connections 10000

Prints ``ready`` and the ports when all connections stand, and ends them when its standard input closes. A process holds
10 000 connections at most, so that the usual hard limit of open files does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import select
import socket
import sys
from multiprocessing.synchronize import Semaphore

PORTS = tuple(range(18000, 18008))
PER_PROCESS = 10_000
REQUEST, ANSWER = b"q" * 120, b"a" * 200
UNREAD_EVERY = 10
"""Each tenth connection has a second request in, which nobody reads."""


def listen(port: int) -> socket.socket:
    """A listener that lets several processes listen beside it."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind(("127.0.0.1", port))
    opened.listen(4096)
    return opened


def serve(listeners: list[socket.socket], count: int, stand: Semaphore) -> None:
    """Accept ``count`` connections and answer the first request of each."""
    poll = select.epoll()
    by_descriptor = {one.fileno(): one for one in listeners}
    for one in listeners:
        one.setblocking(False)
        poll.register(one.fileno(), select.EPOLLIN)
    kept: dict[int, socket.socket] = {}
    answered = 0
    while answered < count:
        for descriptor, _ in poll.poll():
            if descriptor in by_descriptor:
                accept(by_descriptor[descriptor], kept, poll)
            else:
                kept[descriptor].recv(len(REQUEST))
                kept[descriptor].send(ANSWER)
                poll.unregister(descriptor)
                answered += 1
    stand.release()
    wait_for_the_end()


def accept(listener: socket.socket, kept: dict[int, socket.socket], poll: select.epoll) -> None:
    """Take everything from one accept queue."""
    while True:
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return
        kept[accepted.fileno()] = accepted
        poll.register(accepted.fileno(), select.EPOLLIN)


def connect(ports: tuple[int, ...], count: int, stand: Semaphore) -> None:
    """Open ``count`` connections; some send once more when the answer is there."""
    opened = []
    for number in range(count):
        client = socket.create_connection(("127.0.0.1", ports[number % len(ports)]))
        client.send(REQUEST)
        opened.append(client)
    for number, client in enumerate(opened):
        client.recv(len(ANSWER))
        if number // len(ports) % UNREAD_EVERY == 0:
            client.send(REQUEST)
    stand.release()
    wait_for_the_end()


def wait_for_the_end() -> None:
    """Until the parent ends this process, or is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        select.select([], [], [], 0.5)
    os._exit(0)


def main() -> None:
    """Start the processes, say when they stand, and wait."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, required=True)
    connections = parser.parse_args().connections
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pairs = max(1, -(-connections // PER_PROCESS))
    context = multiprocessing.get_context("fork")
    stand = context.Semaphore(0)
    processes = []
    for pair in range(pairs):
        ports = PORTS[pair::pairs]
        count = connections // pairs + (pair < connections % pairs)
        listeners = [listen(port) for port in ports]
        processes += [context.Process(target=serve, args=(listeners, count, stand), daemon=True)]
        processes[-1].start()
        for one in listeners:
            one.close()
        processes += [context.Process(target=connect, args=(ports, count, stand), daemon=True)]
        processes[-1].start()
    for _ in processes:
        stand.acquire()
    print("ready", *PORTS, flush=True)
    sys.stdin.read()
    for process in processes:
        process.kill()


if __name__ == "__main__":
    main()
