"""Cases from the field, in ``tests/cases``: what must be exported, what must not, and which alerts fire over it.

Each file is one story that somebody's monitoring told wrongly. A case of kind ``snapshot`` is a machine at one or more
moments; the others hold raw text for a parser. The alerts are evaluated by promtool over what the sampler exported,
with straight lines between the moments, and every alert that the case does not name must stay silent.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import re
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.catalogue import BUILT
from enginescope import toolchain
from sidecar.exposition import Exposition
from sidecar.http import MetricsServer
from sidecar.kernel import procfs
from sidecar.kernel.netlink import split_messages
from sidecar.kernel.unix_diag import BODY_BYTES, UnixSockets
from sidecar.process_table import ProcessTable
from sidecar.snapshot import Snapshot
from tests.unit.case_world import CASES, Case, World, load, matching, names, variants
from tests.unit.sidecar.oracle import UnixSocket, done, unix_message

_STEP = 15
_HOLD = 300
"""The first and the last moment last so long."""
_ALWAYS = "Watchdog|SidecarDown|SidecarBlind"
"""Fire in every evaluation: there is no ``up``, and the sidecar does not look between the moments."""
_COMPARISONS = {
    ">": lambda value, limit: value > limit,
    "<": lambda value, limit: value < limit,
}


@pytest.mark.parametrize(
    ("name", "variant"), [(name, number) for name in names("snapshot") for number in range(len(variants(load(name))))]
)
def test_case(name: str, variant: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = variants(load(name))[variant]
    world = World(case, tmp_path, monkeypatch)
    seen = []
    for moment in case["moments"]:
        samples = world.look(moment)
        seen.append((moment.get("at", 0), samples))
        for sample, expected in moment.get("exports", {}).items():
            _check(f"{name} at {moment.get('at', 0)} s: {sample}", samples.get(sample), expected)
        for pattern in moment.get("never", []):
            assert matching(samples, pattern) == {}, f"{name} at {moment.get('at', 0)} s"
    world.sampler.close()
    if "alerts" in case:
        assert firing(tmp_path, seen) == sorted(case["alerts"]), name


def _check(what: str, value: float | None, expected: float | str) -> None:
    if isinstance(expected, str):
        assert value is not None, what
        operator, limit = expected.split()
        assert _COMPARISONS[operator](value, float(limit)), f"{what} is {value}, not {expected}"
    else:
        assert value == expected, what


def firing(folder: Path, seen: list[tuple[float, dict[str, float]]]) -> list[str]:
    """Every alert that fires at some time while these samples are scraped."""
    rules = BUILT.read_text()
    wanted = [sample for sample in seen[0][1] | seen[-1][1] if f"enginescope_{re.split('{', sample)[0]}" in rules]
    series = [{"series": _series(sample), "values": " ".join(_values(sample, seen))} for sample in wanted]
    end = seen[-1][0] - seen[0][0] + 2 * _HOLD
    expression = (
        f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing",alertname!~"{_ALWAYS}"}}[{end}s:15s]))'
    )
    test = {"interval": f"{_STEP}s", "input_series": series}
    test["promql_expr_test"] = [{"expr": expression, "eval_time": f"{end}s", "exp_samples": []}]
    path = folder / "promtool.yaml"
    whole = {"rule_files": [str(BUILT)], "evaluation_interval": f"{_STEP}s", "tests": [test]}
    path.write_text(yaml.safe_dump(whole))
    done = subprocess.run([_promtool(), "test", "rules", path], capture_output=True, text=True, timeout=60, check=False)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        return []
    assert "got:" in output, output
    return sorted(set(re.findall(r'alertname="(\w+)"', output.partition("got:")[2])))


def _promtool() -> Path:
    try:
        return toolchain.find("promtool")
    except toolchain.ToolMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"the alerts of the cases are not tested: {error}")
        pytest.skip(f"THE ALERTS OF THE CASES ARE NOT TESTED: {error}")


def _series(sample: str) -> str:
    name, _, labels = sample.removesuffix("}").partition("{")
    given = (pair.split("=", 1) for pair in ["engine=demo", *labels.split(",")] if pair)
    pairs = [f'{label}="{value}"' for label, value in given]
    return f"enginescope_{name}{{{','.join(pairs)}}}"


def _values(sample: str, seen: list[tuple[float, dict[str, float]]]) -> list[str]:
    points = [(at, samples.get(sample)) for at, samples in seen]
    values = [points[0][1]] * (_HOLD // _STEP)
    for (start, low), (end, high) in pairwise(points):
        steps = max(int(end - start) // _STEP, 1)
        for step in range(steps):
            both = low is not None and high is not None
            values.append(low + (high - low) * step / steps if both else low)  # type: ignore[operator]
    values += [points[-1][1]] * (_HOLD // _STEP)
    return ["_" if value is None else repr(float(value)) for value in values]


def test_a_case_that_should_fire_and_does_not_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation itself can tell: the same machine with an overflow in place of the noise."""
    case = load("15-cookies-and-few-drops-are-noise")
    world = World(case, tmp_path, monkeypatch)
    after = case["moments"][1]
    after["counters"] = after["counters"] | {"ListenOverflows": 680}
    after["sockets"] = [after["sockets"][0] | {"drops": 680, "receive": 512}]
    seen = [(moment["at"], world.look(moment)) for moment in case["moments"]]
    world.sampler.close()
    assert firing(tmp_path, seen) == ["TCPBacklogFull"]


# --- parsers


def _bytes(literal: str) -> bytes:
    value = ast.literal_eval(f"({literal})")
    assert isinstance(value, bytes)
    return value


def test_case_unix_names() -> None:
    case = load("38-unix-table-odd-lines")
    rows = [(_bytes(row["name"]), row) for row in case["sockets"]]
    sockets = [
        UnixSocket(row["inode"], state=row.get("state", 1), name=name, receive=row.get("receive", 0))
        for name, row in rows
    ]
    wanted = [_bytes(one["path"]) for one in case["expect"]]
    reducer = UnixSockets(wanted)
    data = b"".join(map(unix_message, sockets)) + done()
    for run in split_messages(memoryview(data), BODY_BYTES).runs:
        reducer.add(run)
    found = [(queues.sockets, queues.receive_bytes) for queues in reducer.queues()]
    assert found == [(one["sockets"], one["receive"]) for one in case["expect"]]


@pytest.mark.parametrize("kernel", load("39-netstat-columns-moved")["kernels"])
def test_case_counter_columns(kernel: str) -> None:
    one = load("39-netstat-columns-moved")["kernels"][kernel]
    counters = procfs.parse_net_counters(one["raw"].encode())
    assert {name: counters[name] for name in one["counters"]} == one["counters"]
    assert not counters.keys() & set(one["absent"])


def test_case_process_names(tmp_path: Path) -> None:
    case = load("40-comm-with-parens-and-newline")
    for pid, files in case["files"].items():
        (tmp_path / str(pid)).mkdir()
        for name, text in files.items():
            (tmp_path / str(pid) / name).write_bytes(text.encode())
    for pid, expected in case["expect"].items():
        stat = procfs.read_stat(tmp_path, pid)
        assert {key: getattr(stat, key) for key in expected if hasattr(stat, key)} == {
            key: value for key, value in expected.items() if hasattr(stat, key)
        }
        assert round(stat.cpu_seconds * procfs.CLOCK_TICKS) == expected["ticks"]
        assert list(procfs.read_cmdline(tmp_path, pid)) == expected["command"]
    table = ProcessTable(tmp_path)
    table.refresh()
    assert sorted(table.processes) == sorted(case["expect"])
    assert {pid for pid, process in table.processes.items() if not process.alive} == set(case["zombies"])


# --- the sidecar itself as the story


def test_case_scrapes_that_give_up_pile_up_nowhere() -> None:
    """Each server's scrape times out and comes again, while the collection hangs."""
    case = load("36-exporter-leaks-its-own-sockets")
    hung = Snapshot(wall_ns=7 * 10**9, monotonic=0.0, engine="demo", engine_up=True)
    collections = 0

    def latest() -> Snapshot:
        nonlocal collections
        collections += 1
        return hung

    server = MetricsServer("127.0.0.1", 0, Exposition(latest, "case").answer, lambda: False)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    before = len(list(Path("/proc/self/fd").iterdir()))
    gone_silent = []
    try:
        for _ in range(case["scrapes"]):
            for _ in range(case["servers"]):
                client = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                gone_silent.append(client)
        own = len(gone_silent)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as response:
            text = response.read().decode()
        descriptors = len(list(Path("/proc/self/fd").iterdir())) - before - own
        threads = [one for one in threading.enumerate() if "_answer" in one.name]
    finally:
        for client in gone_silent:
            client.close()
        server.shutdown()
        server.server_close()
    assert descriptors <= case["descriptors"]
    assert len(threads) <= case["handlers"]
    assert "enginescope_sidecar_last_sample_timestamp_seconds 7.0" in text
    assert collections == 1, "a scrape reads the last snapshot; it never collects"


def test_case_reads_no_text_table_and_not_every_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = load("37-proc-net-tcp-scan-too-slow")
    opened: list[str] = []
    links = 0
    scale = case["scale"]
    moment = {
        "processes": {90: {"listens": [9100], "open_files": scale["descriptors"]}},
        "sockets": [
            {"state": "listen", "port": 8000, "send": 128, "inode": 9100},
            {"state": "established", "port": 8000, "n": scale["established"]},
            {"state": "time_wait", "port": 8000, "n": scale["time_wait"]},
        ],
    }
    world = World({"engine": "port:8000", "processes": {90: {"listens": [9100]}}}, tmp_path, monkeypatch)
    world.look(moment)

    def audit(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            nonlocal links
            links += original is readlink
            opened.append(str(path))
            return original(path, *arguments, **options)

        return call

    readlink = os.readlink
    for module, name in ((os, "open"), (os, "readlink"), (io, "open"), (builtins, "open")):
        monkeypatch.setattr(module, name, audit(getattr(module, name)))
    for _ in range(20):  # new descriptors are looked at a thousand at a time
        links = 0
        world.now += 10
        world.sampler.tick()
        snapshot = world.sampler.snapshot()
    monkeypatch.undo()
    world.sampler.close()
    assert len(opened) > 20
    for forbidden in case["forbidden"]:
        assert [path for path in opened if path.endswith(forbidden)] == []
    assert links < case["links"]
    (connections,) = snapshot.connections
    assert connections.states["time_wait"] == scale["time_wait"]
    assert connections.states["established"] == scale["established"]
    assert [process.open_fds for process in snapshot.processes] == [scale["descriptors"]]
    assert snapshot.collectors["connections"].success


# --- the files themselves


def test_every_case_is_used_and_says_what_it_is_about() -> None:
    own = {"38-unix-table-odd-lines", "39-netstat-columns-moved", "40-comm-with-parens-and-newline"}
    sidecar = {"36-exporter-leaks-its-own-sockets", "37-proc-net-tcp-scan-too-slow"}
    assert set(names("parser")) == own
    assert set(names("sidecar")) == sidecar
    assert set(names("snapshot")) | own | sidecar == {path.stem for path in CASES.glob("*.yaml")}
    for path in CASES.glob("*.yaml"):
        case = load(path.stem)
        assert case["title"]
        assert case["wrong"], "what somebody's monitoring made of it"


def test_every_expected_sample_is_one_that_exists() -> None:
    """A misspelt name in ``never`` would always hold."""
    known = set(re.findall(r"enginescope_(\w+)", (CASES.parents[1] / "docs" / "metrics.md").read_text()))
    for path in CASES.glob("*.yaml"):
        moments = [moment for one in variants(load(path.stem)) for moment in one.get("moments", [])]
        for text in [text for moment in moments for text in (*moment.get("exports", {}), *moment.get("never", []))]:
            name = re.sub("_(bucket|sum|count)$", "", re.split(r"[^\w]", text)[0])
            assert any(one.startswith(name) for one in known), f"{path.stem}: {text}"


def test_the_loader_reads_one_case() -> None:
    case: Case = load("02-close-wait-unread-bytes-v6mapped")
    assert isinstance(case["moments"], list)
    assert _values("a", [(0, {"a": 0.0}), (30, {"a": 3.0})])[19:23] == ["0.0", "0.0", "1.5", "3.0"]


def test_every_moment_that_alerts_has_a_beginning() -> None:
    cases: dict[str, Any] = {name: load(name) for name in names("snapshot")}
    assert not [name for name, case in cases.items() if "alerts" in case and len(case["moments"]) < 2]
