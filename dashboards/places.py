"""Where each failure is seen: the dashboard and the panel that its alert leads to.

Panel ids are addresses: they stand in the ``dashboard_url`` of pages that people received, so one is never given to
another panel. Each dashboard has a hundred of them. A failure that is not named here leads to the list of alerts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

OVERVIEW: Final = "enginescope-overview"
SOCKETS: Final = "enginescope-sockets"
INTERNALS: Final = "enginescope-internals"
TRACES: Final = "enginescope-traces"

FIRST_ID: Final = {OVERVIEW: 1, SOCKETS: 101, INTERNALS: 201, TRACES: 301}
"""Dashboard -> its smallest panel id."""


class Place(NamedTuple):
    """A panel of a dashboard."""

    dashboard: str
    """The dashboard's uid."""
    panel: int


ALERT_LIST: Final = Place(OVERVIEW, 9)

_PANELS: Final = {
    # sockets in
    "tcp_backlog_full": 103,
    "syn_queue_full": 105,
    "listener_vanished": 101,
    "listener_not_accepting": 102,
    "listen_sysctl_unsafe": 106,
    # connections
    "connection_growth": 121,
    "connections_near_limit": 122,
    "close_wait_leak": 123,
    "connection_resets": 124,
    "connects_stuck": 125,
    "time_wait_storm": 126,
    "ephemeral_ports_exhausted": 127,
    "conntrack_full": 128,
    # bytes
    "receive_queue_stuck": 113,
    "send_queue_stuck": 113,
    "retransmits_high": 131,
    "slow_interface": 132,
    # process
    "engine_down": 1,
    "restart_loop": 22,
    "process_frozen": 202,
    "fd_growth": 221,
    "fd_exhausted": 222,
    "memory_growth": 223,
    # inside
    "step_stalled": 203,
    "worker_stalled": 203,
    "input_thread_stuck": 204,
    "output_thread_stuck": 204,
    "engine_unresponsive": 204,
    "output_queue_backlog": 212,
    "serialization_slow": 214,
    "event_loop_blocked": 216,
    "stage_latency_burn": 18,
    "requests_shed": 20,
    "gpu_idle_with_work": 231,
    # the watcher
    "sidecar_down": 2,
    "sidecar_blind": 3,
    "watchdog": 4,
    "spans_dropped": 304,
}


def _dashboard(panel: int) -> str:
    return max((first, uid) for uid, first in FIRST_ID.items() if first <= panel)[1]


PLACES: Final = {failure: Place(_dashboard(panel), panel) for failure, panel in _PANELS.items()}


def place(failure: str) -> Place:
    """Where the alert of a failure leads."""
    return PLACES.get(failure, ALERT_LIST)


def failures_at(panel: int) -> list[str]:
    """The failures whose alerts lead to a panel."""
    return [failure for failure, found in PLACES.items() if found.panel == panel]
