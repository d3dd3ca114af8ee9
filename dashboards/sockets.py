"""The second dashboard: what the kernel knows about the engine's listeners, connections, queues and limits."""

from __future__ import annotations

from typing import Final

from dashboards.limits import limit
from dashboards.model import Dashboard, Kind, Limit, Panel, Query, Row
from dashboards.places import SOCKETS
from dashboards.promql import heat, highest, increase, rate, recorded, series, total
from dashboards.words import A_SETTING, FOUND, HEALTHY_COUNT, HEALTHY_STATE, NONE_IS_GOOD, ONLY_WHEN_BAD, THERE
from telemetry import catalog
from telemetry.catalog import NETNS_COUNTERS, NETNS_GAUGES

_PORT: Final = "{{role}} {{port}}"
_ENDS: Final = "{{role}} {{port}}, {{kind}}"
_BEHIND_A_NETWORK: Final = "the kernel tells it only of connections that the network or the peer holds back"
_NO_INTERFACE: Final = "connections over loopback have no interface with a speed"
_ONLY_TCP: Final = "only with TCP between the engine's processes"
_NO_CONNTRACK: Final = "a kernel without connection tracking has none"
_FORECAST_SECONDS: Final = 1800


def sockets() -> Dashboard:
    """Build it."""
    return Dashboard(
        uid=SOCKETS,
        title="enginescope: sockets",
        says="Listeners, connections and queues of the engine as its kernel sees them, and what runs out.",
        rows=(
            Row("Is it healthy?", (_listeners(), _bound(), _fill(), _drops(), _syn(), _settings())),
            Row("Where do requests wait?", (*_waiting(), *_queues(), *_unix())),
            Row("What changed? Connections", (*_connections(), *_leaving())),
            Row("What changed? Limits and the network", (*_running_out(), *_network())),
        ),
    )


def _listeners() -> Panel:
    return Panel(
        id=101,
        title="Listeners",
        says="Whether a socket listens on each port. A port can vanish while its process lives on and /health over an "
        "open connection still answers.",
        kind=Kind.STATES,
        unit="bool",
        queries=(Query(highest(series(catalog.LISTENER_UP), "port", "role"), _PORT),),
        words=THERE,
        steady=HEALTHY_STATE,
    )


def _bound() -> Panel:
    return Panel(
        id=102,
        title="Bound, but nobody listens",
        says="For how long sockets have been bound to a port while none listens on it. Clients get connection refused, "
        "and nobody else can take the port.",
        unit="s",
        queries=(Query(highest(series(catalog.BOUND_SECONDS), "port", "role"), _PORT),),
        steady=HEALTHY_COUNT,
    )


def _fill() -> Panel:
    record = "engine_port:listener_accept_queue_fill:ratio"
    return Panel(
        id=103,
        title="Accept queues: fill",
        says="Connections that wait for accept(), as a share of min(backlog, somaxconn). From 1 on the kernel drops "
        "new clients without a word; they try again after 1, 3 and 7 seconds.",
        unit="percentunit",
        queries=(Query(recorded("tcp_backlog_full", record), _PORT),),
        limits=(Limit(limit("tcp_backlog_full", f"min_over_time({record}[1m])"), "red"),),
        top=1,
        steady=HEALTHY_COUNT,
    )


def _drops() -> Panel:
    return Panel(
        id=104,
        title="Connections dropped at listeners",
        says="Clients lost. A listener's own drops and the namespace's overflows together mean a full accept queue; "
        "listen drops count other reasons too.",
        unit="short",
        queries=(
            Query(total(increase(catalog.LISTENER_DROPS), "port", "role"), f"{_PORT}: own drops"),
            Query(total(increase(NETNS_COUNTERS["ListenOverflows"])), "namespace: accept queue full"),
            Query(total(increase(NETNS_COUNTERS["ListenDrops"])), "namespace: any reason"),
        ),
        steady=HEALTHY_COUNT,
    )


def _syn() -> Panel:
    return Panel(
        id=105,
        title="SYN queue",
        says="What happens to handshakes while the queue of half-open connections is full. With cookies, clients still "
        "get through; without, their SYN is dropped.",
        unit="short",
        queries=(
            Query(total(increase(NETNS_COUNTERS["TCPReqQFullDrop"])), "SYN dropped"),
            Query(total(increase(NETNS_COUNTERS["TCPReqQFullDoCookies"])), "answered with a cookie"),
            Query(total(increase(NETNS_COUNTERS["SyncookiesFailed"])), "invalid cookie back"),
            Query(total(series(catalog.CONNECTIONS, state="syn_received")), "half-open now"),
        ),
        steady=HEALTHY_COUNT,
    )


def _settings() -> Panel:
    return Panel(
        id=106,
        title="Settings of the engine's namespace",
        says="Sysctls that decide about queues and ports, in the network namespace of the engine itself. listen() "
        "reads somaxconn once: a new value needs a new listener.",
        kind=Kind.TABLE,
        unit="none",
        queries=(Query(f"max by (kind) ({series(catalog.SYSCTL)})"),),
        hidden=("Time",),
        steady=A_SETTING,
    )


def _waiting() -> tuple[Panel, ...]:
    return (
        Panel(
            id=107,
            width=6,
            title="Accept queues: depth and limit",
            says="Connections that are complete in the kernel and wait for accept(), and how many may.",
            unit="short",
            queries=(
                Query(highest(series(catalog.ACCEPT_QUEUE_DEPTH), "port", "role"), f"{_PORT}: waiting"),
                Query(highest(series(catalog.ACCEPT_QUEUE_LIMIT), "port", "role"), f"{_PORT}: limit"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=108,
            width=6,
            title="Accept queues: fill between scrapes",
            says="The fill sampled every 100 ms. It shows the burst of 300 ms that lies between two scrapes.",
            kind=Kind.HEATMAP,
            unit="percentunit",
            queries=(Query(heat(catalog.ACCEPT_QUEUE_FILL), "{{le}}"),),
        ),
        Panel(
            id=109,
            width=6,
            title="Requests that the kernel sees waiting",
            says="Connections with data in and nothing out since. It needs no help of the engine: it is true while "
            "every process of it hangs.",
            unit="short",
            queries=(
                Query(highest(series(catalog.UNANSWERED), "port", "role"), f"{_PORT}: unanswered"),
                Query(highest(series(catalog.CONNECTIONS_UNACCEPTED), "port", "role"), f"{_PORT}: not accepted"),
            ),
        ),
        Panel(
            id=110,
            width=6,
            title="The oldest of them",
            says="Time since the longest waiting connection brought its last data.",
            unit="s",
            queries=(Query(highest(series(catalog.UNANSWERED_OLDEST), "port", "role"), _PORT),),
        ),
    )


def _queues() -> tuple[Panel, ...]:
    return (
        Panel(
            id=111,
            width=6,
            title="Receive queues by role",
            says="Bytes that arrived and that the process has not read. Held up, it is the process that is slow.",
            unit="bytes",
            queries=(
                Query(total(series(catalog.RECEIVE_QUEUE), "port", "role"), f"{_PORT}: all"),
                Query(highest(series(catalog.RECEIVE_QUEUE_MAX), "port", "role"), f"{_PORT}: the fullest"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=112,
            width=6,
            title="Send queues by role",
            says="Bytes that were sent and that the peer has not acknowledged. Held up, it is the peer or the network.",
            unit="bytes",
            queries=(
                Query(total(series(catalog.SEND_QUEUE), "port", "role"), f"{_PORT}: all"),
                Query(highest(series(catalog.SEND_QUEUE_MAX), "port", "role"), f"{_PORT}: the fullest"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=113,
            width=6,
            title="Stuck queues and closed windows",
            says="Sockets whose queue was never empty and never got shorter for 5 s, and sockets that may not send "
            "because their peer does not read.",
            unit="short",
            queries=(
                Query(total(series(catalog.QUEUES_STUCK), "port", "role", "kind"), f"{_PORT}: {{{{kind}}}} stuck"),
                Query(total(series(catalog.ZERO_WINDOW), "port", "role"), f"{_PORT}: window closed"),
            ),
            limits=NONE_IS_GOOD,
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=114,
            width=6,
            title="Kernel memory of connections",
            says="Memory that received and written data takes, and what of it TCP has not sent yet. It grows before "
            "the process notices that a client is slow.",
            unit="bytes",
            queries=(
                Query(total(series(catalog.CONNECTION_MEMORY), "port", "role", "kind"), f"{_ENDS}: memory"),
                Query(total(series(catalog.UNSENT), "port", "role", "kind"), f"{_ENDS}: not sent"),
                Query(total(series(catalog.UNACKED), "port", "role", "kind"), f"{_ENDS}: segments", unit="short"),
            ),
            steady=HEALTHY_COUNT,
        ),
    )


def _unix() -> tuple[Panel, ...]:
    return (
        Panel(
            id=115,
            width=12,
            title="Unix sockets between the processes",
            says="Bytes that wait in the input and output sockets' kernel buffers. They fill only after ZMQ's own "
            "memory: an empty one proves nothing, a full one is a process that does not read.",
            unit="bytes",
            queries=(
                Query(total(series(catalog.UNIX_RECEIVE_QUEUE), "role"), "{{role}}: for its reader"),
                Query(total(series(catalog.UNIX_SEND_QUEUE), "role"), "{{role}}: written, unread"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=116,
            width=12,
            title="Unix sockets: accept queues and blocked writers",
            says="Connections that wait at the role's listening socket and its limit, and senders that poll says may "
            "not write.",
            unit="short",
            queries=(
                Query(highest(series(catalog.UNIX_ACCEPT_DEPTH), "role"), "{{role}}: waiting"),
                Query(highest(series(catalog.UNIX_ACCEPT_LIMIT), "role"), "{{role}}: limit"),
                Query(total(series(catalog.UNIX_BLOCKED), "role"), "{{role}}: blocked writers"),
                Query(total(series(catalog.UNIX_STALE)), "stale files"),
            ),
            steady=HEALTHY_COUNT,
        ),
    )


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
                Query(growth, _PORT),
                Query(f"clamp_min(predict_linear({growth}[10m], {_FORECAST_SECONDS}), 0)", f"{_PORT}: in half an hour"),
                Query(highest(series(catalog.CONNECTIONS_LIMIT), "port", "role"), f"{_PORT}: limit"),
            ),
            width=12,
        ),
        Panel(
            id=122,
            title="Connections: share of the limit",
            says="At 1 nobody gets in any more: accept() fails and new clients hang.",
            unit="percentunit",
            queries=(Query(recorded("connections_near_limit", used), _PORT),),
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
                Query(recorded("close_wait_leak", owned), f"{_PORT}: owned"),
                Query(total(series(catalog.CLOSE_WAIT, kind="unaccepted"), "port", "role"), f"{_PORT}: not accepted"),
                Query(highest(series(catalog.CLOSE_WAIT_OLDEST), "port", "role"), f"{_PORT}: oldest", unit="s"),
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
                Query(total(rate(NETNS_COUNTERS["EstabResets"])), "established, then reset"),
                Query(total(rate(NETNS_COUNTERS["OutRsts"])), "resets sent"),
                Query(total(rate(NETNS_COUNTERS["AttemptFails"])), "attempts failed"),
                Query(total(rate(catalog.NETNS_ABORTS), "kind"), "aborted: {{kind}}"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=125,
            width=12,
            title="Connections the engine cannot open",
            says="Outgoing attempts without an answer for a second (SYN_SENT), and for how long the oldest is tried.",
            unit="short",
            queries=(
                Query(total(series(catalog.CONNECTS)), "pending"),
                Query(highest(series(catalog.CONNECTS_OLDEST)), "oldest", unit="s"),
            ),
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
            unit="short",
            queries=(
                Query(highest(series(catalog.EPHEMERAL_USED)), "used"),
                Query(highest(series(catalog.EPHEMERAL_LIMIT)), "limit"),
                Query(highest(series(catalog.PORTS_IN_EPHEMERAL_RANGE)), "own ports inside the range"),
            ),
            steady="few connections go out of a single engine",
        ),
        Panel(
            id=126,
            title="TIME_WAIT and orphans",
            says="Connections that this side closed first and that keep their port for a minute, and sockets without a "
            "process (of the whole host).",
            unit="short",
            queries=(
                Query(highest(series(NETNS_GAUGES["tw"])), "TIME_WAIT"),
                Query(highest(series(NETNS_GAUGES["orphan"])), "orphaned"),
            ),
        ),
        Panel(
            id=128,
            title="Connection tracking",
            says="Entries of the namespace's conntrack table and its limit. Full, it drops packets of new connections.",
            unit="short",
            queries=(
                Query(highest(series(catalog.CONNTRACK_ENTRIES)), "entries", optional=_NO_CONNTRACK),
                Query(highest(series(catalog.CONNTRACK_LIMIT)), "limit", optional=_NO_CONNTRACK),
            ),
            steady="without firewall rules nothing is tracked",
        ),
    )


def _network() -> tuple[Panel, ...]:
    retransmitted = total(rate(NETNS_COUNTERS["RetransSegs"]))
    sent = total(rate(NETNS_COUNTERS["OutSegs"]))
    return (
        Panel(
            id=131,
            title="Segments sent again",
            says="Share of the namespace's TCP segments that were sent again, and how many of the engine's own.",
            unit="percentunit",
            queries=(
                Query(f"{retransmitted} / ({sent} + {retransmitted})", "of all segments"),
                Query(total(rate(catalog.RETRANSMITS), "role", "kind"), "{{role}}, {{kind}}: segments", unit="cps"),
            ),
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
                Query(
                    highest(series(catalog.DELIVERY_MEDIAN), "role", "kind"),
                    "{{role}}, {{kind}}: median",
                    optional=_BEHIND_A_NETWORK,
                ),
            ),
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
