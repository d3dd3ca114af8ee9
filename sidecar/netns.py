"""Counters of the engine's network namespace, by the kernel's own names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sidecar.kernel import procfs, procinfo
from telemetry.catalog import NETNS_ABORT_KINDS, NETNS_COUNTERS, NETNS_GAUGES

_COUNTERS: Final = (*NETNS_COUNTERS, *NETNS_ABORT_KINDS, "TCPAbortFailed")


def read_namespace_counters(root: Path, pid: int | str) -> dict[str, int]:
    """What /proc/PID/net/netstat, snmp and sockstat count; what this kernel does not count is missing.

    Raises:
        OSError: the process is gone.
    """
    counters = procfs.read_net_counters(root, pid)
    try:
        sockets = procinfo.read_sockstat(root, pid)
    except FileNotFoundError:
        sockets = {}
    found = {name: counters[name] for name in _COUNTERS if name in counters}
    return found | {name: sockets[name] for name in NETNS_GAUGES if name in sockets}
