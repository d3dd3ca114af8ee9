"""The memory that a process can have: control groups of both versions, and the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.kernel.memory_limit import parse_limit, parse_mem_total, parse_memory_groups, read_memory_limit

HOST = 24 * 2**30


@pytest.mark.parametrize(
    ("raw", "groups"),
    [
        (b"0::/a/b\n", [("a/b", "memory.max")]),
        (b"0::/\n", [("", "memory.max")]),
        (
            b"4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n0::/\n",
            [("memory/docker/1f", "memory.limit_in_bytes"), ("", "memory.max")],
        ),
        (b"5:cpu,memory:/\n", [("memory", "memory.limit_in_bytes")]),
        (b"0::/../other\n", []),
        (b"9:name=systemd:/x\n", []),
        (b"0::/a:b\n", [("a:b", "memory.max")]),
        (b"", []),
        (b"garbage\n\xff:\xff", []),
    ],
)
def test_groups(raw: bytes, groups: list[tuple[str, str]]) -> None:
    assert parse_memory_groups(raw) == groups


@pytest.mark.parametrize(
    ("raw", "limit"), [(b"max\n", None), (b"1073741824\n", 2**30), (b"", None), (b"-1\n", None), (b"0\n", 0)]
)
def test_limits(raw: bytes, limit: int | None) -> None:
    assert parse_limit(raw) == limit


@pytest.mark.parametrize(
    ("raw", "total"),
    [(b"MemFree: 1 kB\nMemTotal:   2048 kB\n", 2 * 2**20), (b"MemTotal:\n", None), (b"MemTotal: x kB\n", None)],
)
def test_mem_total(raw: bytes, total: int | None) -> None:
    assert parse_mem_total(raw) == total


def host(root: Path, cgroup: str, **limits: str) -> Path:
    """A /proc with process 7, beside the groups' files: ``a__b=4096`` is memory.max of /a/b."""
    proc = root / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text(cgroup)
    (proc / "meminfo").write_text(f"MemTotal: {HOST // 1024} kB\n")
    for name, limit in limits.items():
        group = root / "sys" / "fs" / "cgroup" / name.replace("__", "/")
        group.mkdir(parents=True, exist_ok=True)
        (group / ("memory.limit_in_bytes" if name.startswith("memory") else "memory.max")).write_text(limit)
    return proc


def test_the_lowest_of_all_groups_above_counts(tmp_path: Path) -> None:
    proc = host(tmp_path, "0::/pod/engine\n", pod="4096\n", pod__engine="max\n")
    assert read_memory_limit(proc, 7) == 4096


def test_version_1_and_its_number_without_a_meaning(tmp_path: Path) -> None:
    proc = host(tmp_path, "4:memory:/pod\n", memory="9223372036854771712\n", memory__pod="9223372036854771712\n")
    assert read_memory_limit(proc, 7) == HOST


def test_without_a_limit_it_is_the_hosts_memory(tmp_path: Path) -> None:
    assert read_memory_limit(host(tmp_path, "0::/pod\n", pod="max\n"), 7) == HOST


def test_nothing_readable_is_unknown(tmp_path: Path) -> None:
    assert read_memory_limit(tmp_path / "proc", 7) is None


def test_this_process() -> None:
    proc, own = Path("/proc"), read_memory_limit(Path("/proc"), "self")
    total = parse_mem_total((proc / "meminfo").read_bytes())
    assert own is not None
    assert total is not None
    assert 0 < own <= total
