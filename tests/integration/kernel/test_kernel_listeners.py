"""What Linux does with listeners under pressure: the sidecar says it, as ``ss`` does.

Reproduced in network namespaces. Every test watches a process with the sidecar's own sampler and compares each number
with ``ss`` and ``nstat`` on the same sockets. Judged by kernel counters with bounded waits, because a virtual machine
may stand still for seconds.
"""

from __future__ import annotations

import errno

import pytest

from tests.conftest import eventually
from tests.integration.half_open import ADDRESS
from tests.integration.kernel.world import MARKS, PORT, Watch, needs_tun, raw_counters
from tests.integration.network import Host
from tests.integration.sidecar_harness import Processes

pytestmark = MARKS


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
