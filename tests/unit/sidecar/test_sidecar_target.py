from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.process_table import Process, ProcessTable, read_process
from sidecar.roles import parse_endpoints
from sidecar.target import EngineSpec, Target, parse_engine

PROC = Path(__file__).parents[2] / "fixtures" / "proc"
PYTHON = "/usr/bin/python3"


class FakeProc:
    """A /proc of our own making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.start(1, 0, "/sbin/init")

    def start(self, pid: int, parent: int, *command: str, ticks: int = 100, state: str = "S") -> None:
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        numbers = [parent, *[0] * 15, 1, 0, ticks, 0, 5]
        (directory / "stat").write_text(f"{pid} (x) {state} {' '.join(map(str, numbers))}\n")
        (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))

    def end(self, pid: int) -> None:
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def resolve(target: Target, pages: dict[int, str] | None = None, owner: int | None = None) -> dict[int, str]:
    target.refresh()
    return {member.pid: member.label for member in target.resolve(pages or {}, owner)}


# --- the flag


def test_engine_flag() -> None:
    assert parse_engine("demo=port:8000") == EngineSpec("demo", port=8000)
    assert parse_engine("demo=pid:12") == EngineSpec("demo", pid=12)
    pattern = parse_engine("a=cmdline:x=y:z").pattern
    assert pattern is not None
    assert pattern.pattern == "x=y:z"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("demo", "--engine takes NAME=port:8000"),
        ("=port:1", "--engine takes"),
        ("demo=port:", "--engine takes"),
        ("demo=host:x", "--engine takes"),
        ("demo=port:0", "port is a number from 1 to 65535, not '0'"),
        ("demo=port:70000", "port is a number"),
        ("demo=port:\uff18\uff10", "port is a number"),
        ("demo=pid:x", "pid is a number"),
        ("demo=cmdline:(", "is not a regular expression"),
    ],
)
def test_bad_engine_flag_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")) as caught:
        parse_engine(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30) | st.text("=:portidcmln0189(", max_size=30))
def test_any_engine_flag_parses_or_is_refused(text: str) -> None:
    try:
        parse_engine(text)
    except ValueError:
        return


def test_endpoints_become_roles() -> None:
    roles = parse_endpoints(
        {
            "http": "127.0.0.1:8000",
            "input": "ipc:///run/x",
            "output": "tcp://[::1]:5555",
            "a": "ipc://@b",
            "z": "inproc://q",
            "input-1": "ipc:///run/x-1",
            "output-7": "tcp://[::1]:5569",
        }
    )
    assert roles.ports == {8000: "http", 5555: "output", 5569: "output"}
    assert roles.paths == {b"/run/x": "input", b"\0b": "a", b"/run/x-1": "input"}


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.text(":/ipctp0189@", max_size=20)))
def test_any_endpoints_parse(endpoints: dict[str, str]) -> None:
    parse_endpoints(endpoints)


# --- which processes


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ((PYTHON, "-m", "instrumented_engine.api", "--port=1"), "instrumented_engine.api"),
        ((PYTHON, "-X", "dev", "-u", "-m", "a"), "a"),
        ((PYTHON, "/usr/bin/vllm", "serve", "-m", "x"), "vllm"),
        (("VLLM::EngineCore",), "VLLM::EngineCore"),
        ((), ""),
    ],
)
def test_program_of_a_command(proc: FakeProc, command: tuple[str, ...], module: str) -> None:
    proc.start(5, 1, *command)
    table = ProcessTable(proc.root)
    table.refresh()
    assert table.processes[5].module == module


def test_fixture_tree_by_listener_owner() -> None:
    found = resolve(Target(EngineSpec("demo", port=8000), PROC), owner=4101)
    assert found == {4100: "engine", 4101: "api", 4102: "core", 4103: "exporter", 4104: "worker"}


def test_pattern_takes_the_whole_tree_and_not_the_sidecar(proc: FakeProc) -> None:
    proc.start(10, 1, "/bin/sh", "-c", "python -m my_engine & python -m sidecar --engine x=cmdline:my_engine")
    proc.start(11, 10, PYTHON, "-m", "my_engine")
    proc.start(12, 11, PYTHON, "-m", "my_engine.worker")
    proc.start(os.getpid(), 10, PYTHON, "-m", "sidecar", "--engine", "x=cmdline:my_engine")
    proc.start(13, 1, PYTHON, "-m", "sidecar", "--engine", "x=cmdline:my_engine")
    assert resolve(Target(parse_engine("x=cmdline:my_engine"), proc.root)) == {11: "engine", 12: "worker"}


def test_ascends_through_the_launchers_of_the_same_program_only(proc: FakeProc) -> None:
    proc.start(10, 1, "/bin/bash")
    proc.start(11, 10, PYTHON, "-m", "my_engine")
    proc.start(12, 11, "sh", "-c", "exec python -m my_engine.api")
    proc.start(13, 12, PYTHON, "-m", "my_engine.api")
    assert resolve(Target(parse_engine("x=pid:13"), proc.root)) == {11: "engine", 12: "worker", 13: "api"}


def test_a_page_owner_belongs_to_the_engine_and_its_role_is_the_label(proc: FakeProc) -> None:
    proc.start(20, 1, "/opt/engine")
    assert resolve(Target(parse_engine("x=port:1"), proc.root), {20: "core"}) == {20: "core"}


def test_a_pid_used_again_is_not_the_engine(proc: FakeProc) -> None:
    proc.start(20, 1, "/opt/engine", ticks=500)
    target = Target(parse_engine("x=pid:20"), proc.root)
    assert resolve(target) == {20: "engine"}
    proc.start(20, 1, "/usr/bin/other", ticks=900)
    assert resolve(target) == {}


def test_the_next_engine_is_found_and_counted(proc: FakeProc) -> None:
    target = Target(parse_engine("x=cmdline:^/opt/engine"), proc.root)
    assert resolve(target) == {}
    for generation in range(3):
        proc.start(20 + generation, 1, "/opt/engine", ticks=500 + generation)
        assert resolve(target) == {20 + generation: "engine"}
        proc.end(20 + generation)
        assert resolve(target) == {}
    assert target.found == 3


def test_a_process_that_execs_later_is_found(proc: FakeProc) -> None:
    target = Target(parse_engine("x=cmdline:^/opt/engine"), proc.root)
    proc.start(20, 1, "/bin/sh")
    assert resolve(target) == {}
    proc.start(20, 1, "/opt/engine")
    assert {20: "engine"} in [resolve(target) for _ in range(5)]


def test_an_orphaned_child_stays_until_it_ends(proc: FakeProc) -> None:
    proc.start(20, 1, "/opt/engine")
    proc.start(21, 20, "/opt/helper")
    target = Target(parse_engine("x=cmdline:^/opt/engine"), proc.root)
    assert resolve(target) == {20: "engine", 21: "worker"}
    proc.end(20)
    proc.start(21, 1, "/opt/helper")
    assert resolve(target) == {21: "worker"}


def test_a_zombie_is_not_alive(proc: FakeProc) -> None:
    proc.start(20, 1, "/opt/engine", state="Z")
    assert resolve(Target(parse_engine("x=cmdline:^/opt/engine"), proc.root)) == {}


def test_watching_nothing_reads_young_processes_and_the_others_in_turn(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 130):
        proc.start(pid, 1, "/bin/old")
    table = ProcessTable(proc.root)
    for _ in range(4):
        table.refresh()
    read: list[int] = []

    def note(root: Path, pid: int) -> Process | None:
        read.append(pid)
        return read_process(root, pid)

    monkeypatch.setattr("sidecar.process_table.read_process", note)
    proc.start(200, 1, "/bin/new")
    for _ in range(4):
        table.refresh()
    assert read.count(200) == 4
    assert len(set(read) - {200}) < 12
    for _ in range(11):
        table.refresh()
    assert set(read) == set(table.processes)


def test_a_process_that_ends_is_gone_at_once(proc: FakeProc) -> None:
    proc.start(20, 1, "/bin/old")
    table = ProcessTable(proc.root)
    table.refresh()
    proc.end(20)
    table.refresh()
    assert 20 not in table.processes
