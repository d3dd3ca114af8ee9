"""Every Prometheus metric of enginescope: name, kind, help and labels.

Code creates its metric families from here, and a test fails on any metric in a rule, dashboard, document or golden
file that is not here. Names carry base units and end in ``_total`` for counters (Prometheus naming practice); state
and label values follow the OpenTelemetry semantic conventions. ``engine`` is not among the labels: it is set on the
scrape target, so that ``up`` and inhibition have it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family; PromQL spells ``name`` as it is, with ``_bucket``, ``_sum`` or ``_count`` for histograms."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    coarse: bool = False
    """A histogram of inner workings: exported with one bucket a decade, to keep an engine below 350 series."""


def _counter(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(f"enginescope_{name}_total", Kind.COUNTER, help_text, labels)


def _gauge(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(f"enginescope_{name}", Kind.GAUGE, help_text, labels)


def _histogram(name: str, help_text: str, *labels: str, coarse: bool = False) -> Metric:
    return Metric(f"enginescope_{name}", Kind.HISTOGRAM, help_text, labels, coarse)


# --- the sidecar itself
BUILD_INFO: Final = Metric("enginescope_build_info", Kind.INFO, "Version of the running sidecar.", ("version",))
COLLECTOR_SUCCESS: Final = _gauge(
    "sidecar_collector_success", "1 when the collector's last run succeeded, 0 when it failed.", "collector"
)
COLLECTOR_DURATION: Final = _gauge(
    "sidecar_collector_duration_seconds", "Wall time of the collector's last run.", "collector"
)
VISIBLE: Final = _gauge(
    "sidecar_visible", "1 when the sidecar may see this fact about its target, 0 when it lacks a permission.", "fact"
)
LOOP_GAP: Final = _gauge(
    "sidecar_loop_gap_seconds", "Longest time between two 100 ms samples in the last minute; large means starved."
)
LAST_SAMPLE: Final = _gauge("sidecar_last_sample_timestamp_seconds", "Unix time of the last kernel sample.")
PAGE_ERRORS: Final = _counter(
    "sidecar_page_errors", "Scoreboard pages that could not be read, such as of another release."
)
SCAN_INTERVAL: Final = _gauge(
    "sidecar_connection_scan_interval_seconds",
    "Time between two scans of the connections; it grows with their number to bound the CPU time.",
)
SIDECAR_CPU: Final = _counter("sidecar_cpu_seconds", "User and system CPU time of the sidecar itself.")
SIDECAR_RSS: Final = _gauge("sidecar_resident_memory_bytes", "Resident set size of the sidecar itself.")
SIDECAR_FDS: Final = _gauge("sidecar_open_fds", "Open file descriptors of the sidecar itself.")
DUMP_RETRIES: Final = _counter(
    "sidecar_socket_dump_retries", "Socket dumps done again because the kernel's tables changed under them."
)

# --- the engine's processes
ENGINE_UP: Final = _gauge("engine_up", "1 when a process of the engine is there, 0 when none is.")
ENGINE_FOUND: Final = _counter("engine_found", "Times a new engine process was found, the first included.")
PROCESS_UP: Final = _gauge("process_up", "1 when the process is alive, 0 when it died or left.", "process")
PROCESS_STARTS: Final = _counter("process_starts", "Processes found, the first included.", "process")
PROCESS_STATE: Final = _gauge(
    "process_state", "1 while the process is stopped, or in uninterruptible sleep (/proc/PID/stat).", "process", "state"
)
PROCESS_CPU: Final = _counter("process_cpu_seconds", "User and system CPU time.", "process")
PROCESS_RSS: Final = _gauge("process_resident_memory_bytes", "Resident set size.", "process")
PROCESS_THREADS: Final = _gauge("process_threads", "Threads of the process.", "process")
PROCESS_FDS: Final = _gauge("process_open_fds", "Open file descriptors.", "process")
PROCESS_MAX_FDS: Final = _gauge("process_max_fds", "Soft limit of open file descriptors (RLIMIT_NOFILE).", "process")
PROCESS_START: Final = _gauge("process_start_time_seconds", "Unix time at which the process started.", "process")

# --- listeners (one per port; with SO_REUSEPORT several sockets: depth, limit and drops are sums, fill is the worst)
LISTENER_UP: Final = _gauge("listener_up", "1 while a socket listens on the port, 0 after it vanished.", "port", "role")
ACCEPT_QUEUE_DEPTH: Final = _gauge(
    "listener_accept_queue_depth", "Connections waiting for accept() (Recv-Q of the LISTEN row).", "port", "role"
)
ACCEPT_QUEUE_LIMIT: Final = _gauge(
    "listener_accept_queue_limit",
    "min(listen() backlog, somaxconn at that time) (Send-Q of the LISTEN row).",
    "port",
    "role",
)
ACCEPT_QUEUE_FILL: Final = _histogram(
    "listener_accept_queue_fill_ratio",
    "Fill of the fullest accept queue, sampled every 100 ms; above 1 it drops new connections.",
    "port",
    "role",
)
LISTENER_DROPS: Final = _counter(
    "listener_drops", "Connections this listener dropped (sk_drops in INET_DIAG_SKMEMINFO).", "port", "role"
)
BOUND_NOT_LISTENING: Final = _gauge(
    "listener_bound_sockets",
    "Sockets bound to the port while none listens on it, so that clients are refused.",
    "port",
    "role",
)

# --- connections of those ports
CONNECTIONS: Final = _gauge("connections", "TCP sockets by local port and state.", "port", "role", "state")
CONNECTIONS_UNACCEPTED: Final = _gauge(
    "connections_unaccepted",
    "Connections that are complete in the kernel and that no process has accepted yet.",
    "port",
    "role",
)
CONNECTIONS_LIMIT: Final = _gauge(
    "connections_limit",
    "Connections that the port's owner can hold at most: its soft limit of open files (RLIMIT_NOFILE).",
    "port",
    "role",
)
CLOSE_WAIT: Final = _gauge(
    "close_wait_sockets",
    "Connections whose peer closed: owned by the process, which must close them, or not accepted yet.",
    "port",
    "role",
    "kind",
)
CLOSE_WAIT_OLDEST: Final = _gauge(
    "close_wait_oldest_seconds",
    "For how long the oldest owned CLOSE_WAIT connection has been seen in it.",
    "port",
    "role",
)
RECEIVE_QUEUE: Final = _gauge("receive_queue_bytes", "Received bytes that the process has not read.", "port", "role")
SEND_QUEUE: Final = _gauge("send_queue_bytes", "Sent bytes that the peer has not acknowledged.", "port", "role")
UNIX_RECEIVE_QUEUE: Final = _gauge(
    "unix_receive_queue_bytes", "Bytes that wait in the engine's unix stream sockets for their reader.", "role"
)
UNIX_SEND_QUEUE: Final = _gauge(
    "unix_send_queue_bytes", "Kernel memory that written but unread bytes take in the engine's unix sockets.", "role"
)

# --- counters of the engine's network namespace, present as 0 from the start
NETNS_COUNTERS: Final = {
    "ListenOverflows": _counter("netns_listen_overflows", "Attempts that found an accept queue full (TcpExt)."),
    "ListenDrops": _counter("netns_listen_drops", "Attempts a listener dropped for any reason (TcpExt)."),
    "TCPReqQFullDrop": _counter(
        "netns_tcp_req_q_full_drop", "SYNs dropped for a full SYN queue, cookies off (TcpExt)."
    ),
    "TCPReqQFullDoCookies": _counter(
        "netns_tcp_req_q_full_do_cookies", "SYNs answered with a cookie for a full SYN queue (TcpExt)."
    ),
    "SyncookiesSent": _counter("netns_syncookies_sent", "SYN cookies sent (TcpExt)."),
    "SyncookiesRecv": _counter("netns_syncookies_received", "Valid SYN cookies that came back (TcpExt)."),
    "SyncookiesFailed": _counter("netns_syncookies_failed", "Invalid SYN cookies that came back (TcpExt)."),
    "ActiveOpens": _counter("netns_active_opens", "Outgoing connection attempts (Tcp)."),
    "PassiveOpens": _counter("netns_passive_opens", "Incoming connections (Tcp)."),
    "AttemptFails": _counter("netns_attempt_fails", "Connection attempts that failed (Tcp)."),
    "EstabResets": _counter("netns_established_resets", "Established connections that were reset (Tcp)."),
    "OutRsts": _counter("netns_resets_sent", "Segments sent with RST (Tcp)."),
    "OutSegs": _counter("netns_segments_sent", "Segments sent, retransmits excluded (Tcp)."),
    "RetransSegs": _counter("netns_segments_retransmitted", "Segments sent again (Tcp)."),
}

# --- scoreboard: requests and stages
REQUESTS: Final = _counter("requests", "Finished requests by outcome.", "outcome")
REQUESTS_RECEIVED: Final = _counter("requests_received", "HTTP requests for a completion that arrived.")
REQUESTS_INFLIGHT: Final = _gauge("requests_inflight", "Requests between arrival and end of the response.")
REQUESTS_WAITING: Final = _gauge("requests_waiting", "Requests in the core that no step has taken yet.")
REQUESTS_RUNNING: Final = _gauge("requests_running", "Requests in the core's running batch.")
STAGE_DURATION: Final = _histogram("stage_duration_seconds", "Duration of a request's stage.", "stage")
REQUEST_DURATION: Final = _histogram("request_duration_seconds", "HTTP request to end of response.")
TIME_TO_FIRST_TOKEN: Final = _histogram(
    "time_to_first_token_seconds", "HTTP request to first output received from the core."
)
TOKENS: Final = _counter("tokens", "Tokens by kind.", "kind")
STAMPS_CLAMPED: Final = _counter("stamps_clamped", "Stamps moved because a clock step put them out of order.")

# --- scoreboard: queues and messages between the processes
QUEUE_DEPTH: Final = _gauge("queue_depth", "Messages in the core's input or output queue.", "kind")
MESSAGES: Final = _counter("messages", "Messages through the input and output sockets.", "role", "kind")
MESSAGE_BYTES: Final = _counter("message_bytes", "Bytes of those messages.", "role", "kind")
OUTPUT_UNRECEIVED: Final = _gauge(
    "output_unreceived_messages", "Output messages sent by the core and not yet received by the API process."
)
OUTPUT_UNRECEIVED_AGE: Final = _gauge(
    "output_unreceived_age_seconds",
    "How long output messages have been waiting without any being received; 0 when none.",
)
OUTPUT_TRANSIT: Final = _histogram("output_transit_seconds", "Output message handed over to received.", coarse=True)
OUTPUT_ENCODE: Final = _histogram(
    "output_encode_seconds", "Serialization of an output message in the core.", coarse=True
)
OUTPUT_SEND_CALL: Final = _histogram("output_send_call_seconds", "The send call of an output message.", coarse=True)
OUTPUT_DECODE: Final = _histogram(
    "output_decode_seconds", "Deserialization of an output message in the API process.", coarse=True
)
STEPS: Final = _counter("steps", "Steps of the core's loop that ran a forward pass.")
STEP_DURATION: Final = _histogram("step_duration_seconds", "Schedule, forward and sample of one step.", coarse=True)
EVENT_LOOP_LAG: Final = _histogram(
    "event_loop_lag_seconds", "How late the API's event loop ran its 100 ms tick.", coarse=True
)
KV_BLOCKS: Final = _gauge("kv_cache_blocks", "Blocks of the KV cache by state.", "state")
PROGRESS: Final = _gauge(
    "last_progress_timestamp_seconds",
    "Unix time of the process's last sign of progress (loop tick, step phase, export).",
    "process",
)

# --- scoreboard: span exporter
SPANS: Final = _counter("spans", "Spans by what became of them.", "outcome")
RECORDS_LOST: Final = _counter("request_records_lost", "Request records overwritten before the reader came.", "process")

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric)) + tuple(
    NETNS_COUNTERS.values()
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
