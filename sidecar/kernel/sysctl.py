"""Numbers from /proc/sys/net: what the network namespace of the thread that opens them says, whatever /proc it is.

A name this kernel or namespace lacks is absent. Sources: Documentation/networking/ip-sysctl.rst, tcp(7),
Documentation/networking/nf_conntrack-sysctl.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.kernel.procfs import parse_number

_FILES: Final = {
    "somaxconn": "core/somaxconn",
    "netdev_max_backlog": "core/netdev_max_backlog",
    "tcp_max_syn_backlog": "ipv4/tcp_max_syn_backlog",
    "tcp_syncookies": "ipv4/tcp_syncookies",
    "tcp_abort_on_overflow": "ipv4/tcp_abort_on_overflow",
    "tcp_tw_reuse": "ipv4/tcp_tw_reuse",
    "tcp_max_tw_buckets": "ipv4/tcp_max_tw_buckets",
    "tcp_rmem": "ipv4/tcp_rmem",
    "tcp_wmem": "ipv4/tcp_wmem",
}
_HIGHEST_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class PortRange:
    """Local ports for connections that do not ask for one."""

    low: int
    high: int
    reserved: frozenset[int] = frozenset()
    """Ports in between that are never given out (ip_local_reserved_ports)."""

    @property
    def size(self) -> int:
        """Ports that may be given out."""
        return self.high - self.low + 1 - len(self.reserved)

    def __contains__(self, port: int) -> bool:
        return self.low <= port <= self.high and port not in self.reserved


def parse_last_number(raw: bytes) -> int | None:
    """The last of the numbers in a file (the maximum in tcp_rmem and tcp_wmem); None when there is none."""
    words = raw.split()
    return parse_number(words[-1]) if words else None


def parse_port_range(raw: bytes, reserved: bytes = b"") -> PortRange | None:
    """ip_local_port_range with ip_local_reserved_ports (``8080,9148-9150``); None when it is not two ports."""
    words = raw.split()
    low, high = map(parse_number, words) if len(words) == 2 else (None, None)
    if low is None or high is None or not 0 <= low <= high <= _HIGHEST_PORT:
        return None
    return PortRange(low, high, frozenset(port for port in _parse_ports(reserved) if low <= port <= high))


def _parse_ports(raw: bytes) -> set[int]:
    found: set[int] = set()
    for part in raw.strip().split(b","):
        first, _, last = part.partition(b"-")
        low, high = parse_number(first), parse_number(last or first)
        if low is not None and high is not None:
            found.update(range(max(low, 0), min(high, _HIGHEST_PORT) + 1))
    return found


def _read(root: Path, name: str) -> bytes:
    try:
        return (root / "sys" / "net" / name).read_bytes()
    except OSError:
        return b""


def read_sysctls(root: Path) -> dict[str, int]:
    """The settings that decide what becomes of connections, those that are visible here."""
    found = {name: parse_last_number(_read(root, path)) for name, path in _FILES.items()}
    return {name: value for name, value in found.items() if value is not None}


def read_port_range(root: Path) -> PortRange | None:
    """``parse_port_range`` of this thread's namespace."""
    return parse_port_range(_read(root, "ipv4/ip_local_port_range"), _read(root, "ipv4/ip_local_reserved_ports"))


def read_conntrack(root: Path) -> tuple[int, int] | None:
    """Tracked connections and their limit in this thread's namespace; None when nothing tracks here."""
    count, limit = (parse_last_number(_read(root, f"netfilter/nf_conntrack_{name}")) for name in ("count", "max"))
    return None if count is None or limit is None else (count, limit)
