from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.kernel import procfs
from tests.conftest import eventually

NUMBER = st.integers(0, 2**40)


def stat_line(pid: int, name: bytes, state: str, numbers: list[int]) -> bytes:
    """/proc/PID/stat with the fields from ppid on."""
    return b"%d (%s) %s %s\n" % (pid, name, state.encode(), " ".join(map(str, numbers)).encode())


@pytest.mark.parametrize(
    ("raw", "name", "state", "cpu"),
    [
        (
            b"4001 (gen (2) .sh) S 400 4001 400 0 -1 4194304 173 0 0 0 5 3 0 0 20 0 1 0 18366278 1 821",
            "gen (2) .sh",
            "S",
            8,
        ),
        (b"4002 (a\nb) c) R 400 4002 400 0 -1 4194304 1 0 0 0 9 1 0 0 20 0 4 0 18366300 1000 10", "a\nb) c", "R", 10),
        (b"4004 (python3) Z 400 4004 400 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 18366302 0 0", "python3", "Z", 0),
        (b"4005 (kworker/u8:1) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 40 0 0", "kworker/u8:1", "I", 0),
        (b"4006 (\xff\xfe) S 1 0 0 0 -1 0 0 0 0 0 7 0 0 0 20 0 1 0 40 0 0", "\ufffd\ufffd", "S", 7),
    ],
)
def test_stat_of_odd_names(raw: bytes, name: str, state: str, cpu: int) -> None:
    stat = procfs.parse_stat(raw)
    assert (stat.name, stat.state) == (name, procfs.STATE_NAMES[state])
    assert round(stat.cpu_seconds * procfs.CLOCK_TICKS) == cpu


@given(
    st.integers(1, 2**22),
    st.binary(max_size=15).filter(lambda name: b"\0" not in name),
    st.sampled_from(sorted(procfs.STATE_NAMES)),
    st.lists(NUMBER, min_size=21, max_size=49),
)
def test_stat_round_trip(pid: int, name: bytes, state: str, numbers: list[int]) -> None:
    stat = procfs.parse_stat(stat_line(pid, name, state, numbers))
    assert (stat.pid, stat.name, stat.state) == (pid, name.decode(errors="replace"), procfs.STATE_NAMES[state])
    assert (stat.parent, stat.threads, stat.start_ticks) == (numbers[0], numbers[16], numbers[18])
    assert stat.resident_bytes == numbers[20] * procfs.PAGE_BYTES


@given(st.binary(max_size=200) | st.text("() 0123456789-.eRSZ\n", max_size=200).map(str.encode))
def test_garbage_raises_nothing_but_the_declared_exception(raw: bytes) -> None:
    for parse in (procfs.parse_stat, procfs.parse_open_files_limit, procfs.parse_boot_time):
        try:
            parse(raw)
        except procfs.ProcfsError:
            continue
    procfs.parse_cmdline(raw)
    procfs.parse_net_counters(raw)
    procfs.parse_socket_link(raw.decode(errors="replace"))


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), max_size=8))
def test_cmdline_round_trip(words: list[str]) -> None:
    assert procfs.parse_cmdline(b"".join(word.encode() + b"\0" for word in words)) == tuple(words)


def test_cmdline_of_a_cut_title() -> None:
    assert procfs.parse_cmdline(b"VLLM::EngineCore\0\0\0\0") == ("VLLM::EngineCore",)
    assert procfs.parse_cmdline(b"") == ()


OLD = b"""TcpExt: SyncookiesSent SyncookiesRecv PAWSPassive PAWSActive ListenOverflows ListenDrops TCPPrequeued
TcpExt: 3 1 0 0 41 44 7
"""
NEW = b"""TcpExt: SyncookiesSent SyncookiesRecv PAWSActive BeyondWindow PAWSTimewait ListenOverflows ListenDrops
TcpExt: 3 1 0 512 8 41 44
MPTcpExt: MPCapableSYNRX MPJoinRejected
MPTcpExt: 0 0
"""


@pytest.mark.parametrize("raw", [OLD, NEW])
def test_counters_go_by_name(raw: bytes) -> None:
    counters = procfs.parse_net_counters(raw)
    assert (counters["ListenOverflows"], counters["ListenDrops"]) == (41, 44)
    assert "TCPReqQFullDrop" not in counters
    assert "MPCapableSYNRX" not in counters


def test_counters_of_a_header_without_values_are_absent() -> None:
    assert procfs.parse_net_counters(b"TcpExt: SyncookiesSent ListenOverflows ListenDrops\n") == {}
    assert procfs.parse_net_counters(b"TcpExt: ListenDrops\nIpExt: InOctets\nIpExt: 5\n") == {}


def test_counters_may_be_negative_and_sections_vary() -> None:
    raw = b"IcmpMsg: InType3 OutType3\nIcmpMsg: 2293 2746\nTcp: RtoMax MaxConn ActiveOpens\nTcp: 120000 -1 31802292\n"
    assert procfs.parse_net_counters(raw) == {"RtoMax": 120000, "MaxConn": -1, "ActiveOpens": 31802292}


@given(
    st.dictionaries(st.from_regex(r"[A-Z][A-Za-z0-9]{0,20}", fullmatch=True), st.integers(-1, 2**64 - 1), min_size=1)
)
def test_counters_round_trip(counters: dict[str, int]) -> None:
    raw = f"Tcp: {' '.join(counters)}\nTcp: {' '.join(map(str, counters.values()))}\n"
    assert procfs.parse_net_counters(raw.encode()) == counters


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        (b"Max open files            1024                 524288               files     \n", 1024),
        (b"Max open files            unlimited            unlimited            files     \n", None),
    ],
)
def test_open_files_limit(line: bytes, limit: int | None) -> None:
    assert procfs.parse_open_files_limit(b"Limit  Soft Limit  Hard Limit  Units\n" + line) == limit


def test_this_process_agrees_with_the_kernel() -> None:
    root, pid = Path("/proc"), os.getpid()
    stat = procfs.read_stat(root, pid)
    assert (stat.pid, stat.parent) == (pid, os.getppid())
    assert stat.state == "running"
    left, right = os.pipe()
    before = procfs.read_descriptor_count(root, pid, by_size=False)
    os.close(left)
    os.close(right)
    assert procfs.read_descriptor_count(root, pid, by_size=False) == before - 2
    if procfs.sizes_count_descriptors(root):
        assert procfs.read_descriptor_count(root, pid, by_size=True) == before - 3  # a listing holds one itself
    assert procfs.read_net_counters(root)["ActiveOpens"] >= 0
    assert procfs.read_boot_time(root) > 10**9


def test_a_copied_tree_has_no_counts_in_sizes(tmp_path: Path) -> None:
    (tmp_path / "self" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd" / "0").symlink_to("socket:[12]")
    (tmp_path / "7" / "fd" / "1").symlink_to("pipe:[13]")
    assert not procfs.sizes_count_descriptors(tmp_path)
    assert procfs.read_descriptor_count(tmp_path, 7, by_size=False) == 2
    assert procfs.read_socket_inodes(tmp_path, 7) == {12}


def test_stat_files_stay_open_and_are_of_the_process_that_was_opened() -> None:
    files = procfs.StatFiles(Path("/proc"))
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert procfs.parse_stat(files.read(child.pid)).name == "cat"
    eventually("asleep", lambda: procfs.parse_stat(files.read(child.pid)).state == "sleeping")
    before = procfs.read_descriptor_count(Path("/proc"), "self", by_size=False)
    os.kill(child.pid, signal.SIGSTOP)
    eventually("stopped", lambda: procfs.parse_stat(files.read(child.pid)).state == "stopped")
    assert procfs.read_descriptor_count(Path("/proc"), "self", by_size=False) == before
    child.kill()
    child.communicate()
    with pytest.raises(OSError):  # noqa: PT011 - ESRCH of the file, then ENOENT of the directory
        files.read(child.pid)
    assert procfs.read_descriptor_count(Path("/proc"), "self", by_size=False) <= before - 1
    files.read(os.getpid())
    files.keep([os.getpid()])
    assert files._open.keys() == {os.getpid()}
    files.keep([])
    assert not files._open
