"""The rows of the second dashboard that answer: what changed, among connections, limits and the network?"""

from __future__ import annotations

from typing import Final

from dashboards.limits import limit
from dashboards.model import Kind, Limit, Panel, Query
from dashboards.promql import highest, rate, recorded, series, total
from dashboards.words import A_SETTING, FOUND, HEALTHY_COUNT, ONLY_WHEN_BAD, PORT
from telemetry import catalog
from telemetry.catalog import NETNS_COUNTERS, NETNS_GAUGES

_BEHIND_A_NETWORK: Final = "the kernel tells it only of connections that the network or the peer holds back"
_NO_INTERFACE: Final = "connections over loopback have no interface with a speed"
_ONLY_TCP: Final = "only with TCP between the engine's processes"
_NO_CONNTRACK: Final = "a kernel without connection tracking has none"
_FORECAST_SECONDS: Final = 1800
_RESETS: Final = "engine:established_resets:rate1m"
_PENDING: Final = "engine:connects_pending:max"
_PORTS_USED: Final = "engine:ephemeral_ports_used:ratio"
_TIME_WAIT: Final = "engine:time_wait_sockets:max"
_TRACKED: Final = "engine:conntrack_used:ratio"


def _near_and_full(failure: str, record: str) -> tuple[Limit, Limit]:
    """Both lines of an alert that fires when something is nearly full for a while, or full at once."""
    near, full = (limit(failure, f"{which}_over_time({record}[1m])") for which in ("min", "max"))
    return Limit(near, "orange"), Limit(full, "red")


def connections() -> tuple[Panel, ...]:
    """Who is connected, and how they leave."""
    return *_connections(), *_leaving()


def limits_and_network() -> tuple[Panel, ...]:
    """What runs out, and what the network does."""
    return *_running_out(), *_network()


def _connections() -> tuple[Panel, ...]:
    record = "engine_port:connections:sum"
    used = "engine_port:connections_used:ratio"
    growth = recorded("connection_growth", record)
    return (
        Panel(
            id=121,
            title="Connections: the curve, its forecast and its limit",
            says="Open connections of each port, where they will be in half an hour if the last ten minutes go on, and "
            "what their process can hold. 50 to 2000 in half an hour looks like nothing for the first ten minutes.",
            unit="short",
            queries=(
                Query(growth, PORT),
                Query(f"clamp_min(predict_linear({growth}[10m], {_FORECAST_SECONDS}), 0)", f"{PORT}: in half an hour"),
                Query(highest(series(catalog.CONNECTIONS_LIMIT), "port", "role"), f"{PORT}: limit"),
            ),
            width=12,
        ),
        Panel(
            id=122,
            title="Connections: share of the limit",
            says="At 1 nobody gets in any more: accept() fails and new clients hang.",
            unit="percentunit",
            queries=(Query(recorded("connections_near_limit", used), PORT),),
            limits=(Limit(limit("connections_near_limit", f"min_over_time({used}[1m])"), "red"),),
            top=1,
            width=12,
        ),
        Panel(
            id=129,
            title="Connections by state",
            says="Every TCP socket of the engine's ports. Established is work, close_wait a client that left and was "
            "not noticed, syn_received a handshake that goes on.",
            unit="short",
            queries=(
                Query(total(series(catalog.CONNECTIONS), "role", "state"), "{{role}} {{state}}"),
                Query(
                    total(series(catalog.PEER_CONNECTIONS), "role", "state"),
                    "{{role}} {{state}}, connecting end",
                    optional=_ONLY_TCP,
                ),
            ),
        ),
    )


def _leaving() -> tuple[Panel, ...]:
    owned = "engine_port:close_wait_owned:max"
    return (
        Panel(
            id=123,
            title="CLOSE_WAIT: clients that left",
            says="Connections whose peer closed and that the process still holds, or has not even accepted. No kernel "
            "timer ends the owned ones.",
            unit="short",
            queries=(
                Query(recorded("close_wait_leak", owned), f"{PORT}: owned"),
                Query(total(series(catalog.CLOSE_WAIT, kind="unaccepted"), "port", "role"), f"{PORT}: not accepted"),
                Query(highest(series(catalog.CLOSE_WAIT_OLDEST), "port", "role"), f"{PORT}: oldest", unit="s"),
            ),
            limits=(Limit(limit("close_wait_leak", f"min_over_time({owned}[1m])"), "orange"),),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=124,
            title="Resets and aborts",
            says="Connections cut off instead of closed. Attempts that fail are clients refused; aborts name the "
            "reason on this side.",
            unit="ops",
            queries=(
                Query(recorded("connection_resets", _RESETS), "established, then reset"),
                Query(total(rate(NETNS_COUNTERS["OutRsts"])), "resets sent"),
                Query(total(rate(NETNS_COUNTERS["AttemptFails"])), "attempts failed"),
                Query(total(rate(catalog.NETNS_ABORTS), "kind"), "aborted: {{kind}}"),
            ),
            limits=(Limit(limit("connection_resets", _RESETS), "orange"),),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=125,
            width=12,
            title="Connections the engine cannot open",
            says="Outgoing attempts without an answer for a second (SYN_SENT), and for how long the oldest is tried.",
            unit="short",
            queries=(
                Query(recorded("connects_stuck", _PENDING), "pending"),
                Query(highest(series(catalog.CONNECTS_OLDEST)), "oldest", unit="s"),
            ),
            limits=(Limit(limit("connects_stuck", f"avg_over_time({_PENDING}[2m])"), "orange"),),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=130,
            width=12,
            title="Opened and accepted",
            says="TCP connections per second of the whole namespace. As many as requests means that clients open one "
            "for each.",
            unit="ops",
            queries=(
                Query(total(rate(NETNS_COUNTERS["PassiveOpens"])), "accepted"),
                Query(total(rate(NETNS_COUNTERS["ActiveOpens"])), "opened"),
            ),
        ),
    )


def _running_out() -> tuple[Panel, ...]:
    return (
        Panel(
            id=127,
            title="Ephemeral ports",
            says="Local ports taken towards the destination that takes most, TIME_WAIT included, and how many there "
            "are. At the limit connect() fails for that destination alone.",
            unit="percentunit",
            queries=(
                Query(recorded("ephemeral_ports_exhausted", _PORTS_USED), "used"),
                Query(highest(series(catalog.EPHEMERAL_USED)), "ports", unit="short"),
                Query(highest(series(catalog.EPHEMERAL_LIMIT)), "limit", unit="short"),
                Query(highest(series(catalog.PORTS_IN_EPHEMERAL_RANGE)), "own ports inside the range", unit="short"),
            ),
            limits=_near_and_full("ephemeral_ports_exhausted", _PORTS_USED),
            top=1,
            steady="few connections go out of a single engine",
        ),
        Panel(
            id=126,
            title="TIME_WAIT and orphans",
            says="Connections that this side closed first and that keep their port for a minute, and sockets without a "
            "process (of the whole host).",
            unit="short",
            queries=(
                Query(recorded("time_wait_storm", _TIME_WAIT), "TIME_WAIT"),
                Query(highest(series(NETNS_GAUGES["orphan"])), "orphaned"),
            ),
            limits=(Limit(limit("time_wait_storm", f"min_over_time({_TIME_WAIT}[1m])"), "orange"),),
        ),
        Panel(
            id=128,
            title="Connection tracking",
            says="Share of the namespace's conntrack table in use. Full, it drops packets of new connections.",
            unit="percentunit",
            queries=(
                Query(recorded("conntrack_full", _TRACKED), "used", optional=_NO_CONNTRACK),
                Query(highest(series(catalog.CONNTRACK_ENTRIES)), "entries", unit="short", optional=_NO_CONNTRACK),
                Query(highest(series(catalog.CONNTRACK_LIMIT)), "limit", unit="short", optional=_NO_CONNTRACK),
            ),
            limits=_near_and_full("conntrack_full", _TRACKED),
            top=1,
            steady="without firewall rules nothing is tracked",
        ),
    )


def _network() -> tuple[Panel, ...]:
    again, sent = "engine:segments_retransmitted:rate5m", "engine:segments_sent:rate5m"
    share = f"{recorded('retransmits_high', again)} / {recorded('retransmits_high', sent)}"
    median = "engine_role:delivery_bytes_per_second:median"
    return (
        Panel(
            id=131,
            title="Segments sent again",
            says="Share of the namespace's TCP segments that were sent again, and how many of the engine's own.",
            unit="percentunit",
            queries=(
                Query(share, "of all segments"),
                Query(total(rate(catalog.RETRANSMITS), "role", "kind"), "{{role}}, {{kind}}: segments", unit="cps"),
            ),
            limits=(Limit(limit("retransmits_high", f"{again} / ({sent} > 10)"), "orange"),),
            steady="loopback loses nothing",
        ),
        Panel(
            id=132,
            title="Speed of the interfaces in use",
            says="The slowest interface that each role's connections use, by direction, and the fastest there is. A "
            "role on a slow one has taken the management network.",
            unit="Bps",
            queries=(
                Query(
                    highest(series(catalog.INTERFACE_SPEED), "role", "kind"),
                    "{{role}} {{kind}}",
                    optional=_NO_INTERFACE,
                ),
                Query(highest(series(catalog.INTERFACE_FASTEST)), "fastest there is", optional=_NO_INTERFACE),
            ),
            steady=A_SETTING,
            hardware="a network interface that has a speed",
        ),
        Panel(
            id=133,
            title="Round trips",
            says="Smoothed round-trip time of established connections, as the kernel measures it.",
            unit="s",
            queries=(
                Query(highest(series(catalog.RTT_MEAN), "role", "kind"), "{{role}}, {{kind}}: mean"),
                Query(highest(series(catalog.RTT_MAX), "role", "kind"), "{{role}}, {{kind}}: longest"),
            ),
        ),
        Panel(
            id=134,
            title="What holds senders back",
            says="Connection-seconds per second in which data waited: for the peer to read, or for room in the own "
            "send buffer.",
            unit="none",
            queries=(
                Query(total(rate(catalog.RECEIVER_LIMITED), "role", "kind"), "{{role}}, {{kind}}: peer's window"),
                Query(total(rate(catalog.BUFFER_LIMITED), "role", "kind"), "{{role}}, {{kind}}: own buffer"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=135,
            title="Delivery rate of held-back connections",
            says="How fast the network takes data from the connections that it holds back; nothing while it holds back "
            "none.",
            unit="Bps",
            queries=(
                Query(
                    highest(series(catalog.DELIVERY_MIN), "role", "kind"),
                    "{{role}}, {{kind}}: slowest",
                    optional=_BEHIND_A_NETWORK,
                ),
                Query(recorded("slow_interface", median), "{{role}}: median", optional=_BEHIND_A_NETWORK),
                Query(
                    recorded("slow_interface", "engine_role:connections_network_limited:sum"),
                    "{{role}}: connections held back",
                    unit="short",
                    optional=_BEHIND_A_NETWORK,
                ),
            ),
            limits=(Limit(limit("slow_interface", f"max_over_time({median}[2m])"), "orange"),),
            steady=ONLY_WHEN_BAD,
        ),
        Panel(
            id=136,
            title="Carrier, Nagle, proxies",
            says="Things that are set wrong once: an interface without a carrier, a socket without TCP_NODELAY, a "
            "proxy variable in the environment of an engine process.",
            kind=Kind.STATES,
            unit="bool",
            queries=(
                Query(
                    f"1 - {highest(series(catalog.INTERFACE_UP), 'role', 'kind')}",
                    "{{role}} {{kind}} down",
                    optional=_NO_INTERFACE,
                ),
                Query(
                    f"1 - {highest(series(catalog.NODELAY), 'role')}",
                    "{{role}} delays small messages",
                    optional=_ONLY_TCP,
                ),
                Query(highest(series(catalog.PROXY_VARIABLE), "kind"), "{{kind}} is set"),
            ),
            words=FOUND,
            steady=A_SETTING,
        ),
    )
