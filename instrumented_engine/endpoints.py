"""Where the sockets between the API process and its cores are: one input and one output endpoint for each core.

=================================  ==================================================  =============================
flags                              core 0                                              core k
=================================  ==================================================  =============================
none                               ``ipc://RUNTIME_DIR/input-PID.sock``, ``output-…``  ``…/input-PID-k.sock``
``--bind-address``/``--interface`` ``tcp://ADDRESS:CORE_PORT`` and ``CORE_PORT + 1``   both ports + 2k
``--input-endpoint`` and output    as given                                            ipc: as above; tcp: port + 2k
=================================  ==================================================  =============================

The API process binds all of them and the cores connect, so that a core that is restarted finds its place by itself.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

_SIOCGIFADDR: Final = 0x8915  # netdevice(7)
_IFREQ: Final = struct.Struct("15sxH2x4s16x")  # name, then a sockaddr_in
_INET6: Final = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE: Final = "00"
_SUN_PATH_MAX: Final = 107  # sizeof(sockaddr_un.sun_path) - 1, unix(7)
_PORTS_PER_CORE: Final = 2


class Endpoints(NamedTuple):
    """Of one core."""

    input: str
    output: str


def of_core(first: Endpoints, core: int) -> Endpoints:
    """The endpoints of a core, from those of the first one."""
    return Endpoints(*(_shifted(endpoint, core) for endpoint in first))


def _shifted(endpoint: str, core: int) -> str:
    if not core:
        return endpoint
    if endpoint.startswith("ipc://"):
        return f"{endpoint.removesuffix('.sock')}-{core}.sock"
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + _PORTS_PER_CORE * core}"


def check(first: Endpoints, cores: int) -> None:
    """Refuse endpoints that ZMQ or the kernel would refuse later with less to say; empty ones are not given yet.

    Raises:
        ValueError: one sentence that names the flag.
    """
    for flag, endpoint in (("--input-endpoint", first.input), ("--output-endpoint", first.output)):
        if endpoint:
            _check_one(flag, endpoint, cores)
    if all(first):
        every = [endpoint for core in range(cores) for endpoint in of_core(first, core)]
        twice = next((endpoint for endpoint in every if every.count(endpoint) > 1), None)
        if twice:
            raise ValueError(
                f"--input-endpoint and --output-endpoint come to the same {twice}: every core needs two of its own, "
                "and core k takes the ports plus 2k"
            )


def _check_one(flag: str, endpoint: str, cores: int) -> None:
    if endpoint.startswith("ipc://"):
        path = _shifted(endpoint, cores - 1).removeprefix("ipc://")
        if len(path.encode()) > _SUN_PATH_MAX:
            raise ValueError(f"{flag}: a unix socket path has at most {_SUN_PATH_MAX} bytes, {path!r} is longer")
        return
    if not endpoint.startswith("tcp://"):
        raise ValueError(f"{flag} must begin with ipc:// or tcp://, not {endpoint!r}")
    port = endpoint.rpartition(":")[2]
    last = int(port) + _PORTS_PER_CORE * (cores - 1) if port.isascii() and port.isdecimal() else 0
    if not 0 < last < 65536:
        raise ValueError(f"{flag} must end with a port that leaves room for {cores} cores, not {endpoint!r}")


def default(runtime_dir: Path, launcher_pid: int, address: str, port: int) -> Endpoints:
    """The endpoints of the first core: TCP on the address if there is one, else ipc, unique to this launcher."""
    if not address:
        return Endpoints(*(f"ipc://{runtime_dir}/{name}-{launcher_pid}.sock" for name in Endpoints._fields))
    host = f"[{address}]" if ":" in address else address
    return Endpoints(f"tcp://{host}:{port}", f"tcp://{host}:{port + 1}")


def parse_address(text: str) -> str:
    """An address that can be bound and connected to.

    Raises:
        ValueError: one sentence that names the flag.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"--bind-address takes an IP address, not {text!r}") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"--bind-address {text}: the cores connect to it, so it must be one address of this host")
    return str(address)


def verify_address(address: str) -> None:
    """Make sure that the address is one of this host's.

    Raises:
        ValueError: one sentence that names the flag.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise ValueError(f"--bind-address {address}: cannot be bound here: {error.strerror}") from error


def address_of(interface: str) -> str:
    """The address of a network interface: its first IPv4 address, else a global IPv6 one.

    Raises:
        ValueError: there is no such interface, or it has no address; one sentence that names the flag.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ValueError(f"--interface {interface}: there is no such interface, only {', '.join(names) or 'none'}")
    found = _ipv4_of(interface) or _ipv6_of(interface)
    if found is None:
        raise ValueError(f"--interface {interface} has no address to bind to")
    return found


def _ipv4_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(interface.encode(), socket.AF_INET, bytes(4)))
        except OSError:  # it has none
            return None
    return socket.inet_ntoa(_IFREQ.unpack(answer)[2])


def _ipv6_of(interface: str) -> str | None:
    try:
        rows = [line.split() for line in _INET6.read_text().splitlines()]
    except OSError:  # a kernel without IPv6
        return None
    found = (row[0] for row in rows if row[5] == interface and row[3] == _GLOBAL_SCOPE)
    return next((str(ipaddress.IPv6Address(bytes.fromhex(address))) for address in found), None)
