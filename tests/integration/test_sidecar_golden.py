"""The whole program over a fixture tree, byte for byte. ``UPDATE_GOLDEN=1`` rewrites the golden file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sidecar.__main__ import start_sampler, start_server
from sidecar.clock import Clock
from sidecar.config import SidecarSettings
from sidecar.http import MetricsServer
from sidecar.kernel.connection_rows import DETAIL
from sidecar.kernel.inet_diag import TcpState
from sidecar.kernel.interfaces import Interfaces, Link
from sidecar.kernel.netlink import DiagSocket
from sidecar.sampler import Sampler
from sidecar.target import parse_engine
from telemetry.catalog import BY_NAME
from telemetry.layout import API, BYTE_BOUNDS, BYTE_HISTOGRAMS, CORE, EXPORTER, GATE_OPEN
from telemetry.records import RequestRecord
from telemetry.scoreboard import HistogramWriter, Writer
from telemetry.stages import STAGES, STAMP_COUNT, Phase
from tests.unit.sidecar.oracle import (
    InetSocket,
    UnixSocket,
    done,
    fake_opener,
    inet_message,
    unix_message,
)
from tests.unit.sidecar.tcp_oracle import TcpSocket, info, tcp_message

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "metrics.txt"
PROC = TESTS / "fixtures" / "proc"
VERSION = re.compile(r'version="[^"]*"')
LISTENERS = [
    InetSocket(8000, 10, receive=30, send=128, inode=55001, cookie=1, drops=7),
    InetSocket(8000, 10, receive=1, send=128, inode=55010, cookie=2, drops=0, family=10),
    InetSocket(443, 10, receive=3, send=511, inode=66001, cookie=3, drops=9),  # nginx's, not the engine's
]
CONNECTIONS = [
    *[InetSocket(8000, 1, inode=56000 + number, cookie=number, receive=100 * number) for number in range(5)],
    *[InetSocket(8000, 1, cookie=10 + number, receive=10) for number in range(31)],  # not accepted yet
    *[InetSocket(8000, 8, inode=57000 + number, cookie=50 + number, receive=1) for number in range(2)],
    InetSocket(8000, 1, inode=58000, cookie=60, send=4000),
]
TCP_INFO = info(
    rtt=250,
    bytes_received=700,
    last_data_recv=1500,
    last_data_sent=2500,
    bytes_sent=90,
    total_retrans=1,
    rwnd_limited=500_000,
    unacked=2,
    notsent_bytes=10,
    delivery_rate=1_000_000,
)
MEMORY = (800, 131072, 0, 87040, 0, 1200, 0, 0, 0)
SHORT = [*[InetSocket(8000, 6) for _ in range(3)], InetSocket(8000, 3)]
UNIX = [
    UnixSocket(100, state=10, name=b"/run/engine/input.sock\0"),
    UnixSocket(101, name=b"/run/engine/input.sock\0", peer=102, receive=600),
    UnixSocket(102, peer=101, send=1500),
    UnixSocket(103, name=b"/run/engine/output.sock\0", peer=104, send=900),
    UnixSocket(104, peer=103, receive=350),
    UnixSocket(105, name=b"/run/dbus\0", receive=5000),
]

LINKS = Interfaces(links={2: Link(2, "eth0", running=True, loopback=False, speed=1_250_000_000)})

DURATIONS = (300_000, 2_000_000, 2_000_000, 700_000_000)


def answer(request: bytes) -> list[bytes]:
    """What the kernel of this fixture says to a request."""
    if request[:1] == b"\1":
        return [b"".join(map(unix_message, UNIX)) + done()]
    states = int.from_bytes(request[52:56], "little")
    if states == 1 << TcpState.LISTEN:
        sockets = LISTENERS
    elif states == 1 << TcpState.BOUND_INACTIVE:
        port = int.from_bytes(request[-2:], "little")  # the last operand of the port filter
        sockets = [InetSocket(port, 7, inode=59000)]
    else:
        sockets = SHORT if states >> TcpState.TIME_WAIT & 1 else CONNECTIONS
    if request[3] & DETAIL == DETAIL:
        return [b"".join(tcp_message(TcpSocket(one, 0, TCP_INFO, MEMORY)) for one in sockets), done()]
    return [b"".join(map(inet_message, sockets)), done()]


def fill(writer: Writer) -> None:
    """A number for every slot, four values for every histogram."""
    for number, slot in enumerate(writer.layout.slots):
        writer[slot] = 100 + number
    for name in writer.layout.histograms:
        if name in BYTE_HISTOGRAMS:
            histogram = HistogramWriter(writer.slots, writer.layout.histogram_index[name], BYTE_BOUNDS)
        else:
            histogram = writer.histogram(name)
        for value in (90, 2000, 2000, 5_000_000) if name in BYTE_HISTOGRAMS else DURATIONS:
            histogram.observe(value)


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Iterator[Path]:
    api, core, exporter = (Writer(tmp_path, layout) for layout in (API, CORE, EXPORTER))
    api.set_endpoints(
        {
            "http": "127.0.0.1:8000",
            "input": "ipc:///run/engine/input.sock",
            "output": "ipc:///run/engine/output.sock",
        }
    )
    for writer in (api, core, exporter):
        fill(writer)
    api["loop_tick_ns"] = core["phase_started_ns"] = exporter["heartbeat_ns"] = 1_790_003_000 * 10**9
    core["output_messages_sent"], api["output_messages_received"] = 500, 497
    api["gate"], core["phase"] = GATE_OPEN, Phase.FORWARD
    for writer in (api, core):
        for slot in writer.layout.slots:
            if "_oldest" in slot or slot.startswith("oldest_") or slot.endswith("heartbeat_ns"):
                writer[slot] = 1_790_003_598 * 10**9
    core["waiting_oldest_ns"] = 0  # nobody waits
    core["output_messages_queued"], core["input_messages_decoded"], core["input_messages_rejected"] = 507, 205, 0
    core["input_messages_taken"], api["core_0_input_sent"] = 203, 209
    stamps = [10**18] * STAMP_COUNT
    for stage in STAGES:
        stamps[stage.end] = 10**18 + 2_000_000
    api.ring().append(RequestRecord(bytes(range(16)), b"s" * 8, b"\0" * 8, 200, 0, 0, 5, 6, 0, 0, stamps).pack())
    yield tmp_path
    for writer in (api, core, exporter):
        writer.close()


@pytest.fixture
def server(runtime_dir: Path) -> Iterator[MetricsServer]:
    settings = SidecarSettings("demo=port:8000", "127.0.0.1:0", str(runtime_dir), str(PROC))
    now = [0.0]
    sampler = Sampler(
        parse_engine(settings.engine),
        runtime_dir,
        PROC,
        Clock(monotonic=lambda: now[0], wall_ns=lambda: 1_790_003_600 * 10**9, thread_cpu=lambda: 0.0),
        DiagSocket(fake_opener(answer)),
        lambda _: LINKS,
    )
    for _ in range(2):
        for _ in range(8):
            sampler.tick()
            now[0] += 0.125  # exact in binary
        sampler.snapshot()
    server = start_server(settings, sampler)
    yield server
    server.shutdown()
    server.server_close()
    sampler.close()


def scrape(server: MetricsServer, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return VERSION.sub('version="0"', response.read().decode())


def test_golden(server: MetricsServer) -> None:
    text = scrape(server)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def promtool() -> str | None:
    in_tools = sorted((TESTS.parent / ".tools").glob("**/promtool"))
    return shutil.which("promtool") or (str(in_tools[0]) if in_tools else None)


@pytest.mark.skipif(promtool() is None, reason="promtool is neither on PATH nor in .tools")
def test_promtool_finds_nothing_in_the_golden_file() -> None:
    tool = promtool()
    assert tool is not None
    checked = subprocess.run(
        [tool, "check", "metrics"], input=GOLDEN.read_bytes(), capture_output=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_golden_is_in_the_catalogue_and_within_the_series_budget() -> None:
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    names = {re.split(r"[{ ]", line)[0] for line in lines}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} <= set(BY_NAME)
    assert len(lines) < 620


def test_openmetrics_parses_and_carries_exemplars(server: MetricsServer) -> None:
    text = scrape(server, "application/openmetrics-text; version=1.0.0")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]  # type: ignore[no-untyped-call]
    exemplars = {
        sample.labels["stage"]: sample.exemplar
        for sample in samples
        if sample.name == "enginescope_stage_duration_seconds_bucket" and sample.exemplar
    }
    assert set(exemplars) == {stage.name for stage in STAGES}
    assert {exemplar.labels["trace_id"] for exemplar in exemplars.values()} == {bytes(range(16)).hex()}
    assert not [sample.name for sample in samples if sample.name.endswith("_created")]


def test_a_missing_tree_fails_collectors_and_not_the_scrape(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    settings = SidecarSettings("demo=port:1", "127.0.0.1:0", str(tmp_path), str(tmp_path / "proc"))
    sampler = start_sampler(settings)
    sampler.tick()
    snapshot = sampler.snapshot()
    sampler.close()
    assert not snapshot.engine_up
    assert not snapshot.collectors["netns"].success
    assert snapshot.collectors["listeners"].success
    assert snapshot.netns == {}
