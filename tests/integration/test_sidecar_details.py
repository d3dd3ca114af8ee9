"""Descriptors, threads, ports, settings and interfaces of real processes in network namespaces of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.network import Host, Watcher, connect_hosts
from tests.integration.sidecar_harness import Processes
from tests.integration.test_sidecar_visibility import NEW_NETWORK, needs

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to make network namespaces"),
]
Watch = Callable[[Host, int], Watcher]
VETH_BYTES = 1_250_000_000
"""A veth calls itself 10 Gbit/s."""


@pytest.fixture
def processes() -> Iterator[Processes]:
    needs(NEW_NETWORK)
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watchers: list[Watcher] = []

    def start(host: Host, port: int) -> Watcher:
        watchers.append(Watcher(host, tmp_path, port))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.sampler.close()


def test_settings_are_those_of_the_engines_namespace_and_not_ours(processes: Processes, watch: Watch) -> None:
    host = Host(processes)
    host("set_sysctl('core/somaxconn', '131')")
    host("set_sysctl('ipv4/ip_local_port_range', '20000 20009')")
    host("set_sysctl('ipv4/tcp_abort_on_overflow', '1')")
    watcher = watch(host, host("listen(20005)"))
    seen = watcher.look()
    assert (seen["sysctl{kind=somaxconn}"], seen["sysctl{kind=tcp_abort_on_overflow}"]) == (131, 1)
    assert Path("/proc/sys/net/core/somaxconn").read_text() != "131\n"
    assert (seen["ephemeral_ports_limit"], seen["service_ports_in_ephemeral_range"]) == (10, 1)
    assert seen["netns_delayed_acks_total"] >= 0
    assert set(seen) >= {f"netns_aborts_total{{kind={kind}}}" for kind in ("data", "memory", "timeout")}


def test_local_ports_run_out_towards_one_destination(processes: Processes, watch: Watch) -> None:
    host = Host(processes)
    host("set_sysctl('ipv4/ip_local_port_range', '20000 20009')")
    port, other = host("listen(8000, backlog=64)"), host("listen(8001, backlog=64)")
    watcher = watch(host, port)
    assert [host(f"dial('127.0.0.1', {port})") for _ in range(8)] == [0] * 8
    assert [host(f"dial('127.0.0.1', {other})") for _ in range(3)] == [0] * 3
    seen = watcher.look(6)
    assert (seen["ephemeral_ports_used"], seen["ephemeral_ports_limit"]) == (8, 10)
    ephemeral = watcher.snapshot.facts.ephemeral
    assert ephemeral is not None
    assert (ephemeral.address, ephemeral.port) == ("127.0.0.1", port)
    assert [host(f"dial('127.0.0.1', {port})") for _ in range(3)] == [0, 0, 99]  # EADDRNOTAVAIL
    assert watcher.look(6)["ephemeral_ports_used"] == 10


def test_interfaces_of_a_role_by_direction(processes: Processes, watch: Watch) -> None:
    engine, client = Host(processes), Host(processes)
    address, _ = connect_hosts(engine, client)
    port = engine("listen(8000, address='0.0.0.0')")
    watcher = watch(engine, port)
    assert client(f"dial('{address}', {port})") == 0
    seen = watcher.look(61)
    for kind in ("receive", "send"):
        assert seen[f"interface_speed_bytes{{kind={kind},role=http}}"] == VETH_BYTES
        assert seen[f"interface_up{{kind={kind},role=http}}"] == 1
    assert seen["interface_fastest_speed_bytes"] == VETH_BYTES
    client.run("ip", "link", "set", "es0", "down")
    seen = watcher.wait(lambda seen: seen["interface_up{kind=receive,role=http}"] == 0)
    assert "interface_fastest_speed_bytes" not in seen


def test_an_io_thread_that_ends_and_descriptors_by_kind(processes: Processes, watch: Watch, tmp_path: Path) -> None:
    host = Host(processes)
    watcher = watch(host, host("listen(8000)"))
    thread = host("begin_thread()")
    host(f"page('{tmp_path}', 'core', {{}}, main_thread_id={host.process.pid}, output_thread_id={thread})")
    before = watcher.look(2)
    label = next(name for name in before if name.startswith("thread_up{kind=output"))
    main = label.replace("output", "main")
    assert (before[label], before[main]) == (1, 1)
    process = label.partition("process=")[2].rstrip("}")
    host("open_kinds(7)")
    host("end_threads()")
    after = watcher.look(2)
    assert (after[label], after[main]) == (0, 1)
    for kind, more in (("pipe", 14), ("eventfd", 7), ("epoll", 7)):
        name = f"process_fds{{kind={kind},process={process}}}"
        assert after[name] - before.get(name, 0) == more
    kinds = sum(value for name, value in after.items() if name.startswith("process_fds{"))
    assert kinds == after[f"process_open_fds{{process={process}}}"]


def test_pages_through_the_root_of_another_mount_namespace(processes: Processes, watch: Watch, tmp_path: Path) -> None:
    hidden = Path("/mnt")
    host = Host(processes, ("unshare", "--net", "--mount", "--propagation=private"))
    host(f"__import__('subprocess').run(['mount', '-t', 'tmpfs', 'pages', '{hidden}'], check=True).returncode")
    port = host("listen(8000)")
    watcher = watch(host, port)
    host(f"page('{hidden}', 'core', {{}}, steps=41)")
    assert not list(hidden.glob("*.page"))
    for path in tmp_path.glob("*.page"):
        path.unlink()
    host("_kept[-2].close()")
    watcher.wait(lambda seen: seen["steps_total"] == 41)
