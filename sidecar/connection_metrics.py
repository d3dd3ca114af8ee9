"""Connections of a snapshot as metric values.

Beside ports with a role, those without one have few series: what their connections wait for helps nobody. Directions
are apart where one of them alone says something, which is TCP_INFO; queues are the engine's at either end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sidecar.roles import main_ports
from sidecar.snapshot import ConnectionSample, EndSample, Snapshot, TcpDetail
from telemetry import catalog
from telemetry.catalog import Metric

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]

_STATES_OFOTHERS: Final = ("established", "close_wait")
_PEER_STATES: Final = ("established", "syn_sent", "close_wait")
_NEVER: Final = "syn_sent"
"""A state that the connections of a listening port are never in."""
_DETAILS: Final = {
    catalog.RTT_MEAN: "rtt_mean",
    catalog.RTT_MAX: "rtt_max",
    catalog.RETRANSMITS: "retransmits",
    catalog.RECEIVER_LIMITED: "receiver_limited",
    catalog.BUFFER_LIMITED: "buffer_limited",
    catalog.UNACKED: "unacked",
    catalog.UNSENT: "unsent",
    catalog.NETWORK_LIMITED: "network_limited",
    catalog.DELIVERY_MIN: "delivery_min",
    catalog.DELIVERY_MEDIAN: "delivery_median",
}


def connection_values(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    """Everything about connections, one item for each metric."""
    samples = snapshot.connections
    told = main_ports({sample.port: sample.role for sample in samples})
    named = [sample for sample in samples if sample.port in told]
    yield catalog.CONNECTIONS, _states(samples, told)
    yield catalog.CONNECTIONS_UNACCEPTED, ((_port(one), one.unaccepted) for one in named)
    yield catalog.CONNECTIONS_LIMIT, ((_port(one), one.limit) for one in samples if one.limit is not None)
    yield catalog.CLOSE_WAIT, _close_wait(samples)
    yield catalog.CLOSE_WAIT_OLDEST, ((_port(one), one.close_wait_oldest) for one in samples)
    yield from _queues(named)
    yield from _directions(named)
    if snapshot.connects is not None:
        yield catalog.CONNECTS, [((), snapshot.connects.sockets)]
        yield catalog.CONNECTS_OLDEST, [((), snapshot.connects.oldest)]


def _port(sample: ConnectionSample) -> Labels:
    return str(sample.port), sample.role


def _states(samples: Iterable[ConnectionSample], told: frozenset[int]) -> Values:
    for sample in samples:
        for state, count in sample.states.items():
            if state in _STATES_OFOTHERS or (sample.port in told and state != _NEVER):
                yield (*_port(sample), state), count


def _close_wait(samples: Iterable[ConnectionSample]) -> Values:
    for sample in samples:
        yield (*_port(sample), "owned"), sample.close_wait_owned
        yield (*_port(sample), "unaccepted"), sample.states.get("close_wait", 0) - sample.close_wait_owned


def _queues(samples: list[ConnectionSample]) -> Iterator[tuple[Metric, Values]]:
    yield catalog.RECEIVE_QUEUE, ((_port(one), one.receive_bytes) for one in samples)
    yield catalog.SEND_QUEUE, ((_port(one), one.send_bytes) for one in samples)
    ends = [(_port(one), list(one.ends.values())) for one in samples if one.ends]
    yield catalog.RECEIVE_QUEUE_MAX, ((port, max(end.receive_max for end in both)) for port, both in ends)
    yield catalog.SEND_QUEUE_MAX, ((port, max(end.send_max for end in both)) for port, both in ends)
    stuck = [((*port, "receive"), sum(end.receive_stuck for end in both)) for port, both in ends]
    stuck += [((*port, "send"), sum(end.send_stuck for end in both)) for port, both in ends]
    yield catalog.QUEUES_STUCK, stuck


def _directions(samples: list[ConnectionSample]) -> Iterator[tuple[Metric, Values]]:
    ends: list[tuple[Labels, EndSample]] = [
        ((*_port(one), direction), end) for one in samples for direction, end in one.ends.items()
    ]
    peers = [(_port(one), one.ends["connecting"].states) for one in samples if "connecting" in one.ends]
    yield catalog.PEER_CONNECTIONS, (((*port, state), by.get(state, 0)) for port, by in peers for state in _PEER_STATES)
    yield catalog.ZERO_WINDOW, ((labels, end.zero_window) for labels, end in ends)
    details = [(labels, end.detail) for labels, end in ends if end.detail is not None]
    memory = ((labels, detail.receive_memory + detail.send_memory) for labels, detail in details)
    yield catalog.CONNECTION_MEMORY, memory
    for metric, field in _DETAILS.items():
        yield metric, _known(details, field)
    # Between the engine's processes messages go one way, and nothing is ever answered on the same connection.
    served = [(_port(one), one.ends["accepted"].detail) for one in samples if list(one.ends) == ["accepted"]]
    clients = [(labels, detail) for labels, detail in served if detail is not None]
    yield catalog.UNANSWERED, _known(clients, "unanswered")
    yield catalog.UNANSWERED_OLDEST, _known(clients, "unanswered_oldest")


def _known(details: Iterable[tuple[Labels, TcpDetail]], field: str) -> Values:
    for labels, detail in details:
        value = getattr(detail, field)
        if value is not None:
            yield labels, value
