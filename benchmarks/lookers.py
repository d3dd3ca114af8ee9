"""One way of looking at all connections, in a process of its own so that none has another's heap or garbage.

    python benchmarks/lookers.py {ours-plain,ours-full,psutil,pyroute2} PORT...

For each line on standard input it looks once and prints the nanoseconds of CPU time, as ``dump_floor`` does. What this
process imports is what the tool needs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def ours(ports: list[int], detailed: bool) -> Callable[[], object]:
    """The sampler's scan."""
    from sidecar.connections import Connections  # noqa: PLC0415
    from sidecar.kernel.netlink import DiagSocket  # noqa: PLC0415

    diag, connections, roles = DiagSocket(), Connections(), dict.fromkeys(ports, "http")
    return lambda: connections.scan(diag, roles, time.monotonic(), detailed)


def psutil() -> Callable[[], object]:
    """Every TCP socket of the namespace, with its process."""
    import psutil as peer  # noqa: PLC0415

    return lambda: peer.net_connections("tcp")


def pyroute2() -> Callable[[], object]:
    """Every TCP socket with TCP_INFO and socket memory."""
    import socket  # noqa: PLC0415

    from pyroute2 import DiagSocket as Peer  # noqa: PLC0415

    from sidecar.kernel.connection_rows import DETAIL  # noqa: PLC0415

    peer = Peer()
    peer.bind()
    return lambda: list(peer.get_sock_stats(family=socket.AF_INET, extensions=DETAIL))


def main() -> None:
    """Look once for each line."""
    name, *ports = sys.argv[1:]
    numbers = [int(port) for port in ports]
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "ours-plain": lambda: ours(numbers, detailed=False),
        "ours-full": lambda: ours(numbers, detailed=True),
        "psutil": psutil,
        "pyroute2": pyroute2,
    }
    look = makers[name]()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.process_time_ns()
        look()
        print(time.process_time_ns() - started, flush=True)


if __name__ == "__main__":
    main()
