from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.collectors import Collectors, Visibility
from sidecar.facts import EphemeralSample, Facts, FdSample, GpuSample, IoThreadSample, ThreadsSample
from sidecar.kernel.interfaces import Interfaces
from sidecar.kernel.netlink import DiagSocket
from sidecar.mapped_pages import MappedPages
from sidecar.metrics import families
from sidecar.namespaces import NamespaceFollower
from sidecar.network import NetworkTracker
from sidecar.nodelay import NodelayReader
from sidecar.pages import PageTracker
from sidecar.snapshot import Snapshot, UnixSample
from sidecar.target import Member
from telemetry.layout import API, CORE
from telemetry.scoreboard import Writer
from tests.unit.sidecar.oracle import done, fake_opener

OWN = Member(os.getpid(), 1, "api")


# --- pages outside of the runtime directory


def test_pages_are_found_through_the_maps_of_their_process(tmp_path: Path) -> None:
    writer = Writer(tmp_path, API)
    writer["requests_ok"] = 3
    tracker = PageTracker(tmp_path / "another", Visibility())
    mapped = MappedPages(Path("/proc"))
    for now in (0.0, 0.5):
        tracker.follow(mapped.find([OWN], tracker.owners(), now))
        tracker.scan()
        tracker.collect()
    found = [page for page in tracker.pages.values() if page.file == writer.path.stat().st_ino]
    assert [page.reader["requests_ok"] for page in found] == [3]
    tracker.close()
    writer.close()


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_page_in_the_runtime_directory_is_not_taken_twice(tmp_path: Path, seen_before: bool) -> None:
    writer = Writer(tmp_path, CORE)
    tracker = PageTracker(tmp_path, Visibility())
    if seen_before:
        tracker.scan()
    tracker.follow(MappedPages(Path("/proc")).find([OWN], {}, 0.0))
    tracker.scan()
    assert [page.path for page in tracker.current("core")] == [writer.path]
    tracker.close()
    writer.close()


def test_maps_are_read_ever_more_rarely_and_not_of_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def note(_: Path, pid: int, __: str) -> tuple[str, ...]:
        read.append(pid)
        return ()

    monkeypatch.setattr("sidecar.mapped_pages.read_mapped_files", note)
    mapped = MappedPages(tmp_path)
    for second in range(64):
        mapped.find([Member(7, 1, "api"), Member(8, 1, "core")], {8}, float(second))
    assert read == [7] * 7
    mapped.find([Member(7, 2, "api")], {}, 64.0)
    assert len(read) == 8


def test_a_process_that_is_gone_has_no_pages(tmp_path: Path) -> None:
    assert MappedPages(tmp_path).find([Member(7, 1, "api")], {}, 0.0) == []


# --- the network namespace


@pytest.fixture
def net(tmp_path: Path) -> Path:
    directory = tmp_path / "sys" / "net" / "ipv4"
    directory.mkdir(parents=True)
    (directory / "ip_local_port_range").write_text("1000 1999\n")
    (directory / "tcp_syncookies").write_text("1\n")
    return tmp_path


def test_settings_every_minute_conntrack_at_every_look_and_anew_for_the_next_engine(net: Path) -> None:
    namespace = NamespaceFollower(net, Visibility(), DiagSocket(fake_opener(lambda _: [done()])))
    tracker = NetworkTracker(net, namespace, lambda: 0.0, lambda _: Interfaces())
    tracker.collect([OWN], {}, 0)
    tracker.collect_ephemeral((), 0)
    assert (tracker.settings.sysctls, tracker.conntrack) == ({"tcp_syncookies": 1}, None)
    assert tracker.ephemeral == EphemeralSample(0, 1000, 1000, 1999)
    (net / "sys" / "net" / "ipv4" / "tcp_syncookies").write_text("0\n")
    (net / "sys" / "net" / "netfilter").mkdir()
    for name, value in (("count", 5), ("max", 6)):
        (net / "sys" / "net" / "netfilter" / f"nf_conntrack_{name}").write_text(f"{value}\n")
    tracker.collect([OWN], {}, 4)
    tracker.collect([OWN], {}, 5)
    assert tracker.settings.sysctls == {"tcp_syncookies": 1}
    assert tracker.conntrack == (5, 6)
    tracker.collect([Member(OWN.pid, 2, "api")], {}, 6)
    assert tracker.settings.sysctls == {"tcp_syncookies": 0}


def test_a_namespace_that_may_not_be_entered_is_absent_and_no_failure(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = NamespaceFollower(net, Visibility(), DiagSocket(fake_opener(lambda _: [done()])))
    tracker = NetworkTracker(net, namespace, lambda: 0.0, lambda _: Interfaces())
    tracker.collect([OWN], {}, 0)
    monkeypatch.setattr(namespace, "_closed", True)
    collectors = Collectors()
    collectors.run("network", tracker.collect, [OWN], {}, 5)
    assert collectors.runs["network"].success
    assert (tracker.settings.sysctls, tracker.settings.ports) == ({}, None)
    tracker.collect_ephemeral((), 5)
    assert tracker.ephemeral is None


# --- TCP_NODELAY


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with client, server:
            yield client, server


def test_nodelay_is_what_the_sockets_have(pair: tuple[socket.socket, socket.socket]) -> None:
    inodes = {"input": {os.fstat(one.fileno()).st_ino for one in pair}}
    pair[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = NodelayReader(Path("/proc"))
    reader.look([OWN], {"input": set(), "output": {os.fstat(pair[0].fileno()).st_ino}}, 0)
    assert reader.found == {"output": True}
    reader.look([OWN], inodes, 1)
    assert reader.found == {"output": True}
    reader.look([OWN], inodes, 5)
    assert reader.found == {"output": True, "input": False}
    reader.look([Member(2**22, 1, "api")], inodes, 10)
    assert reader.found == {}


# --- metrics


def samples(facts: Facts, *unix: UnixSample) -> dict[str, float]:
    snapshot = Snapshot(wall_ns=0, monotonic=0.0, engine="demo", engine_up=False, facts=facts, unix=unix)
    found = {}
    for family in families(snapshot, "1"):
        for one in family.samples:
            labels = ",".join(one.labels.values())
            found[f"{one.name.removeprefix('enginescope_')}{{{labels}}}".removesuffix("{}")] = one.value
    return found


def test_descriptors_and_threads_of_one_label_are_summed_and_the_worst_counts() -> None:
    seen = samples(
        Facts(
            fds=(FdSample("core", 1, {"socket": 3}, 0), FdSample("core", 2, {"socket": 4, "pipe": 1}, 9)),
            threads=(ThreadsSample("core", 1, 1, 2, 0.25), ThreadsSample("core", 2, 0, 0, 0.75)),
            io_threads=(IoThreadSample("core", "input", 1, True), IoThreadSample("core", "input", 2, False)),
            thread_cpu_seconds={"core": {"input": 2.5}},
        )
    )
    assert {name: value for name, value in seen.items() if "{core" in name} == {
        "process_fds{core,socket}": 7,
        "process_fds{core,pipe}": 1,
        "process_fds{core,unread}": 9,
        "process_blocked_threads{core}": 3,
        "process_busiest_thread_ratio{core}": 0.75,
        "thread_up{core,input}": 0,
        "thread_cpu_seconds_total{core,input}": 2.5,
    }


def test_the_worst_destination_is_a_number_and_its_address_stays_in_the_snapshot() -> None:
    facts = Facts(
        ephemeral=EphemeralSample(90, 100, 1000, 1099, "192.0.2.60", 8000),
        service_ports_in_range={1005: True, 8000: False, 1006: True},
        gpu=GpuSample(1, 0.5, None, None, None, None, {"core": 7}),
    )
    seen = samples(facts, UnixSample("input", 3, 0, 0, pending=4, backlog=3, blocked=1), UnixSample("output", 0, 0, 0))
    assert (seen["ephemeral_ports_used"], seen["ephemeral_ports_limit"]) == (90, 100)
    assert seen["service_ports_in_ephemeral_range"] == 2
    assert (seen["gpus"], seen["gpu_utilization_ratio"], seen["gpu_process_memory_bytes{core}"]) == (1, 0.5, 7)
    assert "gpu_power_watts" not in seen
    assert (seen["unix_accept_queue_depth{input}"], seen["unix_accept_queue_limit{input}"]) == (4, 3)
    assert "unix_accept_queue_limit{output}" not in seen
    assert not [name for name in seen if "192.0.2" in name]
    snapshot = Snapshot(wall_ns=0, monotonic=0.0, engine="demo", engine_up=False, facts=facts)
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot
    assert snapshot.to_dict()["facts"]["ephemeral"]["address"] == "192.0.2.60"
