from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors import Visibility
from sidecar.environment import EnvironmentTracker
from sidecar.kernel import procinfo
from sidecar.kernel.procfs import ProcfsError
from sidecar.target import Member
from tests.conftest import eventually

STATUS = b"Name:\tpython3\nNSpid:\t4101\t12\nvoluntary_ctxt_switches:\t1200\nnonvoluntary_ctxt_switches:\t34\n"
MAPS = b"""55d0a0000000-55d0a0001000 r--p 00000000 fe:00 100                        /usr/bin/python3.11
7f0000000000-7f0000021000 rw-s 00000000 00:1b 77                         /run/my engine/api-12.page
7f0000021000-7f0000042000 rw-s 00000000 00:1b 77                         /run/my engine/api-12.page
7f0000042000-7f0000043000 rw-s 00000000 00:1b 78                         /run/core-9.page (deleted)
7f0000043000-7f0000044000 rw-p 00000000 00:00 0
7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]
"""


def test_status() -> None:
    assert procinfo.parse_status(STATUS) == procinfo.Status(1200, 34, 12)


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.lists(st.integers(1, 2**22), min_size=1, max_size=4))
def test_status_round_trip(voluntary: int, involuntary: int, ids: list[int]) -> None:
    numbers = "\t".join(map(str, ids))
    raw = f"NSpid:\t{numbers}\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
    assert procinfo.parse_status(raw.encode()) == procinfo.Status(voluntary, involuntary, ids[-1])


@given(st.binary(max_size=300) | st.text("NSpid:volunetarycxwh_\t\n 0123=-/(.", max_size=300).map(str.encode))
def test_garbage_raises_nothing_but_the_declared_exception(raw: bytes) -> None:
    procinfo.parse_environment_names(raw)
    procinfo.parse_mapped_files(raw, b".page")
    procinfo.parse_sockstat(raw)
    try:
        procinfo.parse_status(raw)
    except ProcfsError:
        return


def test_names_of_variables_that_have_a_value_and_no_value() -> None:
    raw = b"HTTP_PROXY=http://user:secret@192.0.2.200:3128\0NO_PROXY=\0all_proxy=x=y\0broken\0=odd\0"
    assert procinfo.parse_environment_names(raw) == {"http_proxy", "all_proxy"}


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.text(st.characters(codec="ascii"))))
def test_a_value_never_comes_out(variables: dict[str, str]) -> None:
    pairs = {name: value.replace("\0", "") for name, value in variables.items()}
    raw = b"\0".join(f"{name}={value}".encode() for name, value in pairs.items())
    assert procinfo.parse_environment_names(raw) == {name.lower() for name, value in pairs.items() if value}


def test_mapped_pages_once_with_blanks_and_without_deleted_ones() -> None:
    assert procinfo.parse_mapped_files(MAPS, b".page") == (b"/run/my engine/api-12.page",)


def test_sockstat_by_name() -> None:
    raw = b"sockets: used 15\nTCP: inuse 1 orphan 2 tw 983 alloc 4 mem\nUDP: inuse 9 mem 0\n"
    assert procinfo.parse_sockstat(raw) == {"inuse": 1, "orphan": 2, "tw": 983, "alloc": 4}


def test_this_process_agrees_with_the_kernel(tmp_path: Path) -> None:
    root, pid = Path("/proc"), os.getpid()
    assert procinfo.read_status(root, pid).innermost_id == pid
    assert "tw" in procinfo.read_sockstat(root, "self")
    main = procinfo.read_thread(root, pid, pid)
    assert main is not None
    assert (main.thread_id, main.state) == (pid, "running")
    release = threading.Event()
    other = threading.Thread(target=release.wait)
    other.start()
    assert other.native_id is not None
    assert {pid, other.native_id} <= set(procinfo.read_thread_ids(root, pid))
    assert procinfo.read_inner_thread_ids(root, pid, [other.native_id, 2**22]) == {other.native_id: other.native_id}
    release.set()
    other.join()
    gone = other.native_id  # the kernel lets go of it a moment after join() returns
    eventually("the thread's end", lambda: procinfo.read_thread(root, pid, gone) is None)


def test_the_environment_is_read_once_for_each_process(tmp_path: Path) -> None:
    tracker = EnvironmentTracker(tmp_path, Visibility())
    member = Member(7, 1, "api")
    assert tracker.collect([member]) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(b"PATH=/bin\0")
    nothing = dict.fromkeys(procinfo.PROXY_VARIABLES, False)
    assert tracker.collect([member]) == nothing
    (tmp_path / "7" / "environ").write_bytes(b"HTTPS_PROXY=x\0no_proxy=y\0")
    assert tracker.collect([member]) == nothing
    assert tracker.collect([Member(7, 2, "api")]) == nothing | {"https_proxy": True, "no_proxy": True}


def test_a_hidden_environment_is_absent_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> frozenset[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sidecar.environment.read_environment_names", refuse)
    visibility = Visibility()
    assert EnvironmentTracker(tmp_path, visibility).collect([Member(7, 1, "api")]) is None
    assert visibility.facts == {"environment": False}
