"""What Linux does with bytes that do not move, TCP and unix: the sidecar says it, as ``ss`` does.

Reproduced in network namespaces. Every test watches a process with the sidecar's own sampler and compares each number
with ``ss`` and ``nstat`` on the same sockets. Judged by kernel counters with bounded waits, because a virtual machine
may stand still for seconds.
"""

from __future__ import annotations

from pathlib import Path

from tests.conftest import eventually
from tests.integration.kernel.world import MARKS, PORT, Watch, needs_nft, needs_tc
from tests.integration.network import DEVICE, Host, Row, connect_hosts
from tests.integration.sidecar_harness import Processes, Samples

pytestmark = MARKS


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
    limited = seen["connection_receiver_limited_seconds_total" + kind % "accepted"]
    assert limited < 1, "of eight and more; a busy host lets the reader pause"
    assert seen["connection_unacked_segments" + kind % "accepted"] > 0
    slowest = seen["connection_delivery_min_bytes_per_second" + kind % "accepted"]
    assert 50_000 < slowest < 1_000_000, "2 Mbit/s are 250 kB/s"
    assert seen["connections_network_limited" + kind % "accepted"] == 1
    engine.run("tc", "qdisc", "del", "dev", DEVICE, "root")
    watcher.wait(lambda seen: seen[queue] == 0)
    watcher.wait(lambda seen: seen["connections_network_limited" + kind % "accepted"] == 0)
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
