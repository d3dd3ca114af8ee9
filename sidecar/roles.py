"""Socket roles from the endpoints that the engine's pages publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Roles:
    """Where each role's sockets are."""

    ports: dict[int, str] = field(default_factory=dict)
    """TCP port -> role."""
    paths: dict[bytes, str] = field(default_factory=dict)
    """Unix socket name as the kernel has it (a path, or a NUL byte and an abstract name) -> role."""


OTHER: Final = "other"
"""The role of ports that nobody told the role of."""


def main_ports(ports: Mapping[int, str]) -> frozenset[int]:
    """The ports whose connections deserve many series: those with a role, or all when no role is known at all."""
    return frozenset(port for port, role in ports.items() if role != OTHER) or frozenset(ports)


def parse_endpoints(endpoints: Mapping[str, str]) -> Roles:
    """Sort ``host:port``, ``tcp://host:port`` and ``ipc://path`` endpoints; what is none of these is left out.

    The sockets of further cores, such as ``input-1``, have the role of the first one's.
    """
    roles = Roles()
    for entry, endpoint in endpoints.items():
        role = entry.partition("-")[0]
        scheme, separator, rest = endpoint.rpartition("://")
        if scheme == "ipc" and rest:
            name = rest.encode()
            roles.paths[b"\0" + name[1:] if name.startswith(b"@") else name] = role
        elif not separator or scheme in ("tcp", "http"):
            port = rest.rpartition(":")[2].rstrip("/")
            if port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536:
                roles.ports[int(port)] = role
    return roles
