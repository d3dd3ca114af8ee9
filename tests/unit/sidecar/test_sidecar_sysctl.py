from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.kernel import sysctl
from sidecar.kernel.sysctl import PortRange


@pytest.mark.parametrize(
    ("raw", "number"),
    [(b"4096\n", 4096), (b"4096\t131072\t6291456\n", 6291456), (b"-1\n", -1), (b"", None), (b"x", None)],
)
def test_last_number(raw: bytes, number: int | None) -> None:
    assert sysctl.parse_last_number(raw) == number


@pytest.mark.parametrize(
    ("reserved", "size"), [(b"\n", 28232), (b"41000-41999,8080\n", 27232), (b"60999,61000", 28231), (b"1-,x,-3", 28232)]
)
def test_reserved_ports_inside_the_range_do_not_count(reserved: bytes, size: int) -> None:
    ports = sysctl.parse_port_range(b"32768\t60999\n", reserved)
    assert ports is not None
    assert ports.size == size


def test_case_03_a_reserved_port_is_no_ephemeral_port() -> None:
    inside = sysctl.parse_port_range(b"32768 60999")
    apart = sysctl.parse_port_range(b"32768 60999", b"41000-41999")
    assert inside is not None
    assert apart is not None
    assert [41008 in inside, 41008 in apart, 8000 in inside] == [True, False, False]


@given(st.integers(0, 65535), st.integers(0, 65535), st.sets(st.integers(0, 65535), max_size=20))
def test_range_round_trip(low: int, high: int, reserved: set[int]) -> None:
    ports = sysctl.parse_port_range(f"{low}\t{high}\n".encode(), ",".join(map(str, reserved)).encode())
    if low > high:
        assert ports is None
    else:
        inside = {port for port in reserved if low <= port <= high}
        assert ports == PortRange(low, high, frozenset(inside))
        assert ports.size == sum(port in ports for port in range(65536))


@given(st.binary(max_size=60) | st.text("0123456789,- \t\n", max_size=60).map(str.encode))
def test_garbage_raises_nothing(raw: bytes) -> None:
    sysctl.parse_last_number(raw)
    sysctl.parse_port_range(raw, raw)
    sysctl.parse_port_range(b"1 9", raw)


def test_what_a_namespace_lacks_is_absent(tmp_path: Path) -> None:
    (tmp_path / "sys" / "net" / "core").mkdir(parents=True)
    (tmp_path / "sys" / "net" / "core" / "somaxconn").write_text("128\n")
    assert sysctl.read_sysctls(tmp_path) == {"somaxconn": 128}
    assert sysctl.read_port_range(tmp_path) is None
    assert sysctl.read_conntrack(tmp_path) is None


def test_this_machine() -> None:
    found = sysctl.read_sysctls(Path("/proc"))
    assert found["somaxconn"] == int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert found["tcp_rmem"] == int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])
