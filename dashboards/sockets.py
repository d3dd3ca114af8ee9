"""The second dashboard: what the kernel knows about the engine's listeners, connections, queues and limits."""

from __future__ import annotations

from typing import Final

from dashboards.connections import connections, limits_and_network
from dashboards.limits import limit
from dashboards.model import Dashboard, Kind, Limit, Panel, Query, Row
from dashboards.places import SOCKETS
from dashboards.promql import heat, highest, increase, recorded, series, total
from dashboards.words import A_SETTING, AT_ONCE, HEALTHY_COUNT, HEALTHY_STATE, PORT, THERE
from telemetry import catalog
from telemetry.catalog import NETNS_COUNTERS

_ENDS: Final = "{{role}} {{port}}, {{kind}}"
_STUCK: Final = {"receive": "engine_port:receive_queue_stuck:max", "send": "engine_port:send_queue_stuck:max"}


def sockets() -> Dashboard:
    """Build it."""
    return Dashboard(
        uid=SOCKETS,
        title="enginescope: sockets",
        says="Listeners, connections and queues of the engine as its kernel sees them, and what runs out.",
        rows=(
            Row("Is it healthy?", (_listeners(), _bound(), _fill(), _drops(), _syn(), _settings())),
            Row("Where do requests wait?", (*_waiting(), *_queues(), *_unix())),
            Row("What changed? Connections", connections()),
            Row("What changed? Limits and the network", limits_and_network()),
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
        queries=(Query(highest(series(catalog.LISTENER_UP), "port", "role"), PORT),),
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
        queries=(
            Query(highest(series(catalog.BOUND_SECONDS), "port", "role"), PORT),
            Query(
                recorded("listener_not_accepting", "engine_port:listener_bound_sockets:max"),
                f"{PORT}: sockets",
                unit="short",
            ),
        ),
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
        queries=(Query(recorded("tcp_backlog_full", record), PORT),),
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
            Query(total(increase(catalog.LISTENER_DROPS), "port", "role"), f"{PORT}: own drops"),
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
            Query(recorded("syn_queue_full", "engine_port:half_open:max"), f"{PORT}: half-open now"),
        ),
        steady=HEALTHY_COUNT,
    )


def _unsafe(kind: str) -> float:
    return limit("listen_sysctl_unsafe", f'last_over_time({catalog.SYSCTL.name}{{kind="{kind}"}}[5m])')


def _settings() -> Panel:
    return Panel(
        id=106,
        title="Settings of the engine's namespace",
        says="Sysctls that decide about queues and ports, in the network namespace of the engine itself. Unsafe are "
        f"tcp_syncookies {_unsafe('tcp_syncookies'):g}, tcp_abort_on_overflow {_unsafe('tcp_abort_on_overflow'):g} and "
        f"somaxconn below {_unsafe('somaxconn'):g}. listen() reads somaxconn once: a new value needs a new listener.",
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
                Query(highest(series(catalog.ACCEPT_QUEUE_DEPTH), "port", "role"), f"{PORT}: waiting"),
                Query(highest(series(catalog.ACCEPT_QUEUE_LIMIT), "port", "role"), f"{PORT}: limit"),
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
                Query(highest(series(catalog.UNANSWERED), "port", "role"), f"{PORT}: unanswered"),
                Query(highest(series(catalog.CONNECTIONS_UNACCEPTED), "port", "role"), f"{PORT}: not accepted"),
            ),
            steady=AT_ONCE,
        ),
        Panel(
            id=110,
            width=6,
            title="The oldest of them",
            says="Time since the longest waiting connection brought its last data.",
            unit="s",
            queries=(Query(highest(series(catalog.UNANSWERED_OLDEST), "port", "role"), PORT),),
            steady=AT_ONCE,
        ),
    )


def _stuck_limits() -> tuple[Limit, ...]:
    asked = (("receive", "!=", "1m"), ("receive", "=", "1m"), ("send", "=", "2m"))
    return tuple(
        Limit(
            limit(f"{queue}_queue_stuck", f'min_over_time({_STUCK[queue]}{{role{operator}"http"}}[{window}])'), "orange"
        )
        for queue, operator, window in asked
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
                Query(total(series(catalog.RECEIVE_QUEUE), "port", "role"), f"{PORT}: all"),
                Query(highest(series(catalog.RECEIVE_QUEUE_MAX), "port", "role"), f"{PORT}: the fullest"),
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
                Query(total(series(catalog.SEND_QUEUE), "port", "role"), f"{PORT}: all"),
                Query(highest(series(catalog.SEND_QUEUE_MAX), "port", "role"), f"{PORT}: the fullest"),
            ),
            steady=HEALTHY_COUNT,
        ),
        Panel(
            id=113,
            width=6,
            title="Stuck queues and closed windows",
            says="Sockets whose queue was never empty and never got shorter for 5 s, and sockets that may not send "
            "because their peer does not read. The lower line is for sockets inside the engine, the others for those "
            "to clients.",
            unit="short",
            queries=(
                Query(recorded("receive_queue_stuck", _STUCK["receive"]), f"{PORT}: receive stuck"),
                Query(recorded("send_queue_stuck", _STUCK["send"]), f"{PORT}: send stuck"),
                Query(total(series(catalog.ZERO_WINDOW), "port", "role"), f"{PORT}: window closed"),
            ),
            limits=_stuck_limits(),
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
