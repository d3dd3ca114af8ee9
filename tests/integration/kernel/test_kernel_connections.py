"""What Linux does with connections that stay, and ports that run out: the sidecar says it, as ``ss`` does.

Reproduced in network namespaces. Every test watches a process with the sidecar's own sampler and compares each number
with ``ss`` and ``nstat`` on the same sockets. Judged by kernel counters with bounded waits, because a virtual machine
may stand still for seconds.
"""

from __future__ import annotations

import errno

from tests.integration.kernel.world import MARKS, PORT, Watch
from tests.integration.network import Host
from tests.integration.sidecar_harness import Processes

pytestmark = MARKS


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
