"""What Linux does with sockets under pressure, reproduced in network namespaces: the sidecar says it, as ``ss`` does.

Every test watches a process with the sidecar's own sampler and compares each number with ``ss`` and ``nstat`` on the
same sockets. Judged by kernel counters with bounded waits, because a virtual machine may stand still for seconds.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.kernel import procfs
from tests.conftest import eventually
from tests.integration.half_open import ADDRESS
from tests.integration.network import DEVICE, Host, Row, Watcher, connect_hosts
from tests.integration.sidecar_harness import Processes, Samples
from tests.integration.test_sidecar_visibility import NEW_NETWORK, works

_TOOLS = ("ip", "nsenter", "nstat", "ss", "unshare")
_MISSING = [tool for tool in _TOOLS if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to make network namespaces"),
    pytest.mark.skipif(bool(_MISSING), reason=f"needs {', '.join(_MISSING)}"),
    pytest.mark.skipif(not _MISSING and not works(NEW_NETWORK), reason="this machine refuses network namespaces"),
]
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft, of the package nftables")
needs_tc = pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc, of the package iproute2")
needs_tun = pytest.mark.skipif(not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="needs /dev/net/tun")

Watch = Callable[..., Watcher]
PORT = 8000


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watchers: list[Watcher] = []

    def begin(host: Host, port: int = PORT, **endpoints: str) -> Watcher:
        watchers.append(Watcher(host, tmp_path, port, **endpoints))
        return watchers[-1]

    yield begin
    for watcher in watchers:
        watcher.sampler.close()


def raw_counters(host: Host) -> dict[str, int]:
    """Also those that are not exported."""
    return procfs.read_net_counters(Path("/proc"), host.process.pid)


# --- accept queue


@needs_tun
@pytest.mark.parametrize("abort", [0, 1])
def test_accept_queue_overflow(processes: Processes, watch: Watch, abort: int) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"set_sysctl('ipv4/tcp_abort_on_overflow', '{abort}')")
    engine(f"listen({PORT}, backlog=4, address='')")
    watcher = watch(engine)
    labels = watcher.labels
    quiet = watcher.agrees_with_ss()
    assert quiet[f"listener_accept_queue_limit{labels}"] == 4
    assert quiet["netns_listen_overflows_total"] == 0

    # Three handshakes begin while there is room; their last ACKs come later. The client sees SYN-ACKs for five.
    engine(f"half_open({PORT}, 3)")
    watcher.wait(lambda seen: seen[f"connections{{port={PORT},role=http,state=syn_received}}"] == 3)
    client(f"begin('127.0.0.1', {PORT}, 12)")
    full = watcher.wait(
        lambda seen: (
            seen[f"listener_accept_queue_depth{labels}"] == 5
            and seen["netns_listen_overflows_total"] >= 7
            and seen[f"connections{{port={PORT},role=http,state=established}}"] == 5
        )
    )
    assert full[f"connections_unaccepted{labels}"] == 5
    assert full[f"listener_drops_total{labels}"] == full["netns_listen_overflows_total"]
    assert full["netns_listen_overflows_total"] == full["netns_listen_drops_total"]
    assert (
        full[f"listener_accept_queue_fill_ratio_bucket{{le=+Inf,port={PORT},role=http}}"]
        > (full[f"listener_accept_queue_fill_ratio_bucket{{le=1.0,port={PORT},role=http}}"])
    )
    waiting = [row for row in client.ss() if row.state == "syn_sent"]
    assert len(waiting) == 7
    assert full["netns_resets_sent_total"] == 0, "SYNs at a full queue are dropped in silence, with either setting"
    watcher.agrees_with_ss()
    (listener,) = [row for row in engine.ss(PORT) if row.state == "listen"]
    seen = watcher.look()
    assert listener.drops <= seen[f"listener_drops_total{labels}"] <= engine.ss(PORT)[0].drops

    # The setting decides only what happens to the last ACK of a handshake that began before the queue was full.
    before = raw_counters(engine)
    engine(f"finish_handshakes({PORT}, 3)")
    eventually("three more overflows", lambda: raw_counters(engine)["ListenOverflows"] >= before["ListenOverflows"] + 3)
    after = raw_counters(engine)
    assert after["EmbryonicRsts"] - before["EmbryonicRsts"] == 3 * abort
    seen = watcher.wait(lambda seen: seen["netns_resets_sent_total"] == 3 * abort)
    assert seen[f"connections{{port={PORT},role=http,state=syn_received}}"] == 3 * (1 - abort)
    watcher.agrees_with_ss()


@needs_tun
@pytest.mark.parametrize(
    ("cookies", "syn_backlog", "backlog", "held", "cookies_sent", "queue_drops", "listen_drops"),
    [
        (1, 2048, 64, 65, 235, 0, 0),
        (2, 2048, 64, 0, 300, 0, 0),
        (0, 2048, 64, 65, 0, 235, 235),
        (0, 128, 1000, 97, 0, 0, 203),
        (1, 128, 1000, 300, 0, 0, 0),
    ],
)
def test_syn_queue(
    processes: Processes,
    watch: Watch,
    cookies: int,
    syn_backlog: int,
    backlog: int,
    held: int,
    cookies_sent: int,
    queue_drops: int,
    listen_drops: int,
) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"set_sysctl('ipv4/tcp_syncookies', '{cookies}')")
    engine(f"set_sysctl('ipv4/tcp_max_syn_backlog', '{syn_backlog}')")
    engine(f"listen({PORT}, backlog={backlog}, address='')")
    watcher = watch(engine)
    watcher.agrees_with_ss()
    engine(f"half_open({PORT}, 300)")
    flooded = watcher.agrees_with_ss()
    state = f"connections{{port={PORT},role=http,state=%s}}"
    assert flooded[state % "syn_received"] == held
    assert flooded["netns_syncookies_sent_total"] == flooded["netns_tcp_req_q_full_do_cookies_total"] == cookies_sent
    assert flooded["netns_tcp_req_q_full_drop_total"] == queue_drops
    assert flooded["netns_listen_drops_total"] == listen_drops
    assert flooded["netns_listen_overflows_total"] == 0, "the accept queue is empty: it was never full"
    assert flooded[f"listener_accept_queue_depth{watcher.labels}"] == 0
    assert flooded[f"listener_drops_total{watcher.labels}"] == listen_drops
    assert next(row for row in engine.ss(PORT) if row.state == "listen").drops == listen_drops

    client(f"begin('{ADDRESS}', {PORT}, 1)")
    if cookies:  # a real client gets in, by a cookie when the queue is full
        seen = watcher.wait(lambda seen: seen[state % "established"] == 1)
        assert seen["netns_syncookies_received_total"] == int(bool(cookies_sent))
        assert seen[f"connections_unaccepted{watcher.labels}"] == 1
    else:
        watcher.wait(lambda seen: seen["netns_listen_drops_total"] > listen_drops)
        assert [row.state for row in client.ss() if row.peer_port == PORT] == ["syn_sent"]
    watcher.agrees_with_ss()


def test_one_of_two_reuseport_listeners_overflows(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT}, backlog=3, reuse=True)")
    engine(f"listen({PORT}, backlog=50, reuse=True)")
    watcher = watch(engine)
    watcher.wait(lambda seen: seen[f"listener_accept_queue_limit{watcher.labels}"] == 53)
    client(f"begin('127.0.0.1', {PORT}, 40)")  # the kernel spreads them by hash: 3 of 40 on one side is one in 10^8
    watcher.wait(lambda seen: seen[f"listener_drops_total{watcher.labels}"] > 0)
    seen = watcher.agrees_with_ss()
    rows = [row for row in engine.ss(PORT) if row.state == "listen"]
    small, large = sorted(rows, key=lambda row: row.send)
    assert (small.receive, small.drops > 0) == (4, True)
    assert (large.receive <= 50, large.drops) == (True, 0)
    assert seen[f"listener_accept_queue_depth{watcher.labels}"] == small.receive + large.receive
    (sample,) = watcher.snapshot.listeners
    assert sample.sockets == 2
    assert sample.fill == 4 / 3, "the sum, 4 + n of 53, looks healthy; the fullest socket drops"
    assert sample.depth / sample.limit < 1


# --- connections that stay


def test_close_wait_owned_and_unaccepted(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT}, backlog=16)")
    watcher = watch(engine)
    client(f"begin('127.0.0.1', {PORT}, 5)")
    watcher.wait(lambda seen: seen[f"listener_accept_queue_depth{watcher.labels}"] == 5)
    engine("accept(3)")
    client("_kept[0].send(b'abc')")
    client("[one.close() for one in _kept]")
    state = f"connections{{port={PORT},role=http,state=close_wait}}"
    watcher.wait(lambda seen: seen[state] == 5)
    seen = watcher.agrees_with_ss()
    assert seen[f"connections_unaccepted{watcher.labels}"] == 2
    assert seen[f"listener_accept_queue_depth{watcher.labels}"] == 2, "those who gave up still wait in the queue"
    assert seen[f"receive_queue_bytes{watcher.labels}"] == 3 + 5, "a FIN counts as one byte"
    kind = f"close_wait_sockets{{kind=%s,port={PORT},role=http}}"
    oldest = f"close_wait_oldest_seconds{watcher.labels}"
    assert (seen[kind % "owned"], seen[kind % "unaccepted"]) == (3, 2)
    assert watcher.look(seconds=60)[oldest] >= seen[oldest] + 60
    peers = [row.state for row in client.ss() if row.peer_port == PORT]
    assert peers.count("fin_wait_2") == 5
    engine("[_kept.pop().close() for _ in range(3)]")
    watcher.wait(lambda seen: (seen[kind % "owned"], seen[kind % "unaccepted"]) == (0, 2))
    watcher.agrees_with_ss()


def test_a_listener_vanishes_and_returns(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT}, backlog=2)")
    watcher = watch(engine)
    client(f"begin('127.0.0.1', {PORT}, 4)")
    before = watcher.wait(lambda seen: seen[f"listener_drops_total{watcher.labels}"] > 0)
    assert before[f"listener_up{watcher.labels}"] == 1
    watcher.agrees_with_ss()
    engine("close_listener()")
    gone = watcher.wait(lambda seen: seen[f"listener_up{watcher.labels}"] == 0)
    assert f"listener_accept_queue_depth{watcher.labels}" not in gone
    assert gone["engine_up"] == gone["process_up{process=api}"] == 1
    assert gone["netns_resets_sent_total"] >= 3, "the kernel resets those that waited in the queue"
    refused = watcher.look()["netns_resets_sent_total"]
    assert client(f"dial('127.0.0.1', {PORT})") == errno.ECONNREFUSED
    watcher.wait(lambda seen: seen["netns_resets_sent_total"] == refused + 1)
    assert watcher.ss_facts()["accept_queue_limit"] == 0
    drops = watcher.look()[f"listener_drops_total{watcher.labels}"]
    engine(f"listen({PORT}, backlog=7)")
    back = watcher.wait(lambda seen: seen[f"listener_up{watcher.labels}"] == 1)
    assert back[f"listener_accept_queue_limit{watcher.labels}"] == 7
    assert back[f"listener_drops_total{watcher.labels}"] == drops, "the new socket counts from 0, the counter goes on"
    assert [row.drops for row in engine.ss(PORT) if row.state == "listen"] == [0]


def test_bound_and_not_listening(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT}, backlog=-1)")
    watcher = watch(engine)
    seen = watcher.wait(lambda seen: seen[f"listener_bound_sockets{watcher.labels}"] == 1)
    assert f"listener_up{watcher.labels}" not in seen, "it never listened, so it did not vanish"
    assert [row for row in engine.ss(PORT) if row.state == "listen"] == []
    assert client(f"dial('127.0.0.1', {PORT})") == errno.ECONNREFUSED
    engine("begin_to_listen()")
    seen = watcher.wait(lambda seen: seen[f"listener_up{watcher.labels}"] == 1)
    assert seen[f"listener_bound_sockets{watcher.labels}"] == 0
    watcher.agrees_with_ss()


# --- limits of the namespace


def test_somaxconn_of_the_namespace_holds_at_listen_time(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    engine("set_sysctl('core/somaxconn', '77')")
    engine(f"listen({PORT}, backlog=4000)")
    watcher = watch(engine)
    limit = f"listener_accept_queue_limit{watcher.labels}"
    watcher.wait(lambda seen: seen[limit] == 77)
    engine("set_sysctl('core/somaxconn', '900')")
    assert watcher.agrees_with_ss()[limit] == 77, "raising it does nothing to a socket that listens already"
    engine("_kept[0].listen(4000)")
    watcher.wait(lambda seen: seen[limit] == 900)
    watcher.agrees_with_ss()


def test_ephemeral_ports_run_out_towards_one_destination(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    server = engine.beside(processes)
    engine("set_sysctl('ipv4/ip_local_port_range', '40000 40009')")
    engine(f"listen({PORT})")
    for port in (9000, 9001):
        server(f"listen({port}, backlog=64)")
    watcher = watch(engine)
    errors = engine("begin('127.0.0.1', 9000, 11)")
    assert errors.count(errno.EADDRNOTAVAIL) == 1, errors
    assert engine("begin('127.0.0.1', 9001, 1)") != [errno.EADDRNOTAVAIL], "another destination has all ten again"
    seen = watcher.wait(lambda seen: seen["netns_active_opens_total"] == 11)
    assert seen["netns_attempt_fails_total"] == 0, "no counter of the kernel tells that the ports are used up"
    taken = {row.port for row in engine.ss() if row.peer_port == 9000}
    seen = watcher.wait(lambda seen: seen["ephemeral_ports_used"] == len(taken) == 10)
    assert seen["ephemeral_ports_limit"] == 10
    assert seen["service_ports_in_ephemeral_range"] == 0
    found = watcher.snapshot.facts.ephemeral
    assert found is not None
    assert (found.address, found.port) == ("127.0.0.1", 9000)
    watcher.agrees_with_ss()
    server("[_kept.pop(0).close() for _ in range(2)]")  # the listeners: nothing is accepted, the clients are reset
    watcher.wait(lambda seen: seen["ephemeral_ports_used"] == 0)


def test_ports_in_time_wait_are_taken_and_no_process_has_them(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    server = engine.beside(processes)
    engine("set_sysctl('ipv4/ip_local_port_range', '40000 40009')")
    engine("set_sysctl('ipv4/tcp_tw_reuse', '0')")
    engine(f"listen({PORT})")
    server("listen(9000, backlog=64)")
    watcher = watch(engine)
    for _ in range(10):
        assert engine("dial('127.0.0.1', 9000)") == 0
        server("accept(1)")
        engine("_kept.pop().close()")
        server("_kept.pop().close()")
    states = {row.state for row in engine.ss() if row.peer_port == 9000}
    assert states == {"time_wait"}
    watcher.wait(lambda seen: seen["ephemeral_ports_used"] == 10)
    assert engine("dial('127.0.0.1', 9000)") == errno.EADDRNOTAVAIL


def test_connects_that_nobody_answers(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    server = engine.beside(processes)
    engine(f"listen({PORT})")
    server("listen(9000, backlog=1)")
    watcher = watch(engine)
    engine("begin('127.0.0.1', 9000, 5)")  # two fill the queue
    seen = watcher.wait(lambda seen: seen["connects_pending"] == 3)
    assert [row.state for row in engine.ss() if row.peer_port == 9000].count("syn_sent") == 3
    oldest = seen["connects_pending_oldest_seconds"]
    assert watcher.look(seconds=30)["connects_pending_oldest_seconds"] >= oldest + 30
    server("accept(2)")
    watcher.wait(lambda seen: seen["connects_pending"] == 0)


# --- bytes that do not move


def test_a_peer_that_does_not_read(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT})")
    watcher = watch(engine)
    client(f"begin('127.0.0.1', {PORT}, 1)")
    engine("accept(1)")
    sent = engine("fill(_kept[-1])")

    def stuck() -> bool:
        row = next(row for row in engine.ss(PORT) if row.state == "established")
        return "timer:(persist" in row.text and row.number("notsent:") == row.send > 0 and row.number("unacked:") == 0

    eventually("a zero window", stuck)
    seen = watcher.agrees_with_ss()
    waiting = seen[f"send_queue_bytes{watcher.labels}"]
    assert 0 < waiting <= sent
    kind = f"{{kind=%s,port={PORT},role=http}}"
    assert seen["connection_zero_window_sockets" + kind % "accepted"] == 1
    assert seen["connection_unsent_bytes" + kind % "accepted"] == waiting
    assert seen["queue_stuck_sockets" + kind % "send"] == 0, "not before five seconds"
    assert watcher.look(seconds=5)["queue_stuck_sockets" + kind % "send"] == 1
    limited = "connection_receiver_limited_seconds_total" + kind % "accepted"
    low, told, high = limited_seconds(engine), watcher.look()[limited], limited_seconds(engine)
    assert low <= told <= high, "tcp_info counts in microseconds, ss prints milliseconds"
    watcher.wait(lambda later: later[limited] > told)
    (row,) = [row for row in client.ss() if row.peer_port == PORT]
    assert waiting + row.receive == sent
    client(f"drain(_kept[-1], {sent})")
    watcher.wait(lambda seen: seen[f"send_queue_bytes{watcher.labels}"] == 0)
    seen = watcher.agrees_with_ss()
    assert seen["connection_zero_window_sockets" + kind % "accepted"] == 0
    assert seen["queue_stuck_sockets" + kind % "send"] == 0


def limited_seconds(engine: Host) -> float:
    """For how long the peer's window has kept the engine's connection from sending, give or take a millisecond."""
    (row,) = [row for row in engine.ss(PORT) if row.state == "established"]
    return row.number("rwnd_limited:") / 1e3


def test_what_a_closed_socket_still_sends_is_nobodys_queue(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT})")
    watcher = watch(engine)
    client(f"begin('127.0.0.1', {PORT}, 1)")
    engine("accept(1)")
    assert engine("fill(_kept[-1])") > 0
    watcher.wait(lambda seen: seen[f"send_queue_bytes{watcher.labels}"] > 0)
    engine("_kept.pop().close()")
    watcher.wait(lambda seen: seen[f"connections{{port={PORT},role=http,state=fin_wait_1}}"] == 1)
    (orphan,) = [row for row in engine.ss(PORT) if row.state == "fin_wait_1"]
    assert orphan.send > 0
    seen = watcher.agrees_with_ss()
    assert seen[f"send_queue_bytes{watcher.labels}"] == 0


def test_an_engine_that_does_not_read(processes: Processes, watch: Watch) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    engine(f"listen({PORT})")
    watcher = watch(engine)
    client(f"begin('127.0.0.1', {PORT}, 2)")
    engine("accept(2)")
    client("_kept[0].send(bytes(700))")
    client("_kept[1].send(bytes(300))")
    watcher.wait(lambda seen: seen[f"receive_queue_bytes{watcher.labels}"] == 1000)
    seen = watcher.agrees_with_ss()
    assert seen[f"receive_queue_max_bytes{watcher.labels}"] == 700
    assert seen[f"connections_unanswered{watcher.labels}"] == 2
    kind = f"{{kind=%s,port={PORT},role=http}}"
    seen = watcher.look(seconds=5)
    assert (seen["queue_stuck_sockets" + kind % "receive"], seen["queue_stuck_sockets" + kind % "send"]) == (2, 0)
    engine("drain(_kept[-1], 300)")
    seen = watcher.wait(lambda seen: seen["queue_stuck_sockets" + kind % "receive"] == 1)
    assert seen[f"receive_queue_bytes{watcher.labels}"] == 700
    watcher.agrees_with_ss()


@needs_nft
def test_a_peer_behind_a_black_hole(processes: Processes, watch: Watch) -> None:
    engine, client = Host(processes), Host(processes)
    address, _ = connect_hosts(engine, client)
    engine(f"listen({PORT}, address='')")
    watcher = watch(engine)
    client(f"begin('{address}', {PORT}, 1)")
    engine("accept(1)")
    watcher.agrees_with_ss()
    # On the receiver's input: dropped on the sender's output it would look like a peer that does not read.
    client.run("nft", "add table inet hole")
    client.run("nft", "add chain inet hole input { type filter hook input priority 0; }")
    client.run("nft", "add rule inet hole input drop")
    sent = engine("fill(_kept[-1])")
    seen = watcher.wait(lambda seen: seen["netns_segments_retransmitted_total"] >= 2)
    assert seen[f"send_queue_bytes{watcher.labels}"] == sent
    (row,) = [row for row in engine.ss(PORT) if row.state == "established"]
    assert row.number("unacked:") > 0
    assert row.send == sent
    assert "timer:(on" in row.text
    assert row.number("rwnd_limited:") == 0
    kind = f"{{kind=%s,port={PORT},role=http}}"
    seen = watcher.look(seconds=5)
    assert seen["queue_stuck_sockets" + kind % "send"] == 1
    assert seen["connection_zero_window_sockets" + kind % "accepted"] == 0, "it is not the peer that does not read"
    assert seen["connection_receiver_limited_seconds_total" + kind % "accepted"] == 0
    told = watcher.agrees_with_ss()["connection_segments_retransmitted_total" + kind % "accepted"]
    assert 2 <= told == next(row for row in engine.ss(PORT) if row.state == "established").number("retrans:[0-9]+/")
    client.run("nft", "delete table inet hole")
    client(f"drain(_kept[-1], {sent})")
    watcher.wait(lambda seen: seen[f"send_queue_bytes{watcher.labels}"] == 0)
    watcher.agrees_with_ss()


@needs_tc
def test_a_slow_link(processes: Processes, watch: Watch) -> None:
    engine, client = Host(processes), Host(processes)
    address, _ = connect_hosts(engine, client)
    engine.run(*f"tc qdisc add dev {DEVICE} root tbf rate 2mbit burst 20kb limit 60kb".split())
    engine(f"listen({PORT}, address='')")
    watcher = watch(engine)
    client(f"begin('{address}', {PORT}, 1)")
    engine("accept(1)")
    client("read_along(_kept[-1])")

    def one() -> Row:
        return next(row for row in engine.ss(PORT) if row.state == "established")

    queue = f"send_queue_bytes{watcher.labels}"
    kind = f"{{kind=%s,port={PORT},role=http}}"
    engine("_kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)")
    engine("fill(_kept[-1])")
    seen = watcher.wait(lambda seen: seen[queue] > 100_000)
    for _ in range(8):  # seconds in which it drains, slowly: nobody is stuck
        before = seen[queue]
        seen = watcher.wait(lambda seen, before=before: 0 < seen[queue] < before)  # type: ignore[misc]
        assert seen["queue_stuck_sockets" + kind % "send"] == 0
    assert one().number("notsent:") > 0
    assert seen["connection_zero_window_sockets" + kind % "accepted"] == 0
    assert seen["connection_receiver_limited_seconds_total" + kind % "accepted"] == 0
    assert seen["connection_unacked_segments" + kind % "accepted"] > 0
    slowest = seen["connection_delivery_min_bytes_per_second" + kind % "accepted"]
    assert 50_000 < slowest < 1_000_000, "2 Mbit/s are 250 kB/s"
    assert one().number("rwnd_limited:") == 0
    engine.run("tc", "qdisc", "del", "dev", DEVICE, "root")
    watcher.wait(lambda seen: seen[queue] == 0)
    watcher.agrees_with_ss()


def test_unix_queues(processes: Processes, watch: Watch, tmp_path: Path) -> None:
    engine = Host(processes)
    client = engine.beside(processes)
    path = tmp_path / "input.sock"
    engine(f"listen_unix('{path}', backlog=2)")
    client(f"connect_unix('{path}', 1)")
    engine("accept(1)")
    client(f"connect_unix('{path}', 3)")  # the queue takes one more than its backlog
    watcher = watch(engine, input=f"ipc://{path}")
    role = "{role=input}"
    watcher.wait(lambda seen: seen[f"unix_accept_queue_depth{role}"] == 3)
    client("_kept[0].send(bytes(1000))")
    seen = watcher.wait(lambda seen: seen[f"unix_receive_queue_bytes{role}"] == 1000)
    assert seen[f"unix_accept_queue_limit{role}"] == 2
    assert seen[f"unix_blocked_writers{role}"] == 0
    compare_unix(engine, path, seen)
    sent = 1000 + client("fill(_kept[0])")
    seen = watcher.wait(lambda seen: seen[f"unix_receive_queue_bytes{role}"] == sent)
    assert seen[f"unix_blocked_writers{role}"] == 1
    compare_unix(engine, path, seen)
    engine(f"drain([one for one in _kept if isinstance(one, socket.socket)][1], {sent})")
    seen = watcher.wait(lambda seen: seen[f"unix_receive_queue_bytes{role}"] == 0)
    assert seen[f"unix_blocked_writers{role}"] == 0
    compare_unix(engine, path, seen)


def compare_unix(engine: Host, path: Path, seen: Samples) -> None:
    rows = engine.ss_unix(path)
    (listener,) = [row for row in rows if row.state == "listen"]
    connected = [row for row in rows if row.state == "established"]
    assert seen["unix_accept_queue_depth{role=input}"] == listener.receive
    assert seen["unix_accept_queue_limit{role=input}"] == listener.send
    assert seen["unix_receive_queue_bytes{role=input}"] == sum(row.receive for row in connected)
    assert seen["unix_send_queue_bytes{role=input}"] == sum(row.send for row in connected)
