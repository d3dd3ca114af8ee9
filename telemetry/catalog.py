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
    """A histogram of inner workings: exported with one bucket a decade, to keep the number of series down."""


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
SNAPSHOT_DURATION: Final = _gauge(
    "sidecar_snapshot_duration_seconds", "Wall time of the last runs of all collectors together."
)
VISIBLE: Final = _gauge(
    "sidecar_visible", "1 when the sidecar may see this fact about its target, 0 when it lacks a permission.", "fact"
)
LOOP_GAP: Final = _gauge(
    "sidecar_loop_gap_seconds", "Longest time between two 100 ms samples in the last minute; large means starved."
)
STARVED: Final = _counter(
    "sidecar_starved_seconds",
    "Time in gaps of more than 0.6 s between two samples: over those nothing is judged.",
)
LAST_SAMPLE: Final = _gauge("sidecar_last_sample_timestamp_seconds", "Unix time of the last kernel sample.")
PAGE_ERRORS: Final = _counter(
    "sidecar_page_errors", "Scoreboard pages that could not be read, such as of another release."
)
SCAN_INTERVAL: Final = _gauge(
    "sidecar_connection_scan_interval_seconds",
    "Time between two scans of the connections; it grows with their number to bound the CPU time.",
)
DETAIL_INTERVAL: Final = _gauge(
    "sidecar_connection_detail_interval_seconds",
    "Time between two scans with TCP_INFO, which go before scans move apart; 0 when they cost too much.",
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
PROCESS_MEMORY_LIMIT: Final = _gauge(
    "process_memory_limit_bytes",
    "Memory that the process can have at most: the lowest limit of its control groups, else all of the host's.",
    "process",
)
PROCESS_THREADS: Final = _gauge("process_threads", "Threads of the process.", "process")
PROCESS_FDS: Final = _gauge("process_open_fds", "Open file descriptors.", "process")
PROCESS_MAX_FDS: Final = _gauge("process_max_fds", "Soft limit of open file descriptors (RLIMIT_NOFILE).", "process")
PROCESS_FD_KINDS: Final = _gauge(
    "process_fds",
    "Open descriptors by kind, for kinds there are; unread: more than fit the budget, not looked at yet.",
    "process",
    "kind",
)
THREADS_BLOCKED: Final = _gauge(
    "process_blocked_threads",
    "Threads that are stopped or in uninterruptible sleep, every 5 s; absent above 200 threads.",
    "process",
)
BUSIEST_THREAD: Final = _gauge(
    "process_busiest_thread_ratio",
    "Share of a core that the busiest thread took in 5 s; absent above 200 threads.",
    "process",
)
CONTEXT_SWITCHES: Final = _counter(
    "process_context_switches",
    "Context switches of the main thread (/proc/PID/status): involuntary ones are lost time slices.",
    "process",
    "kind",
)
THREAD_UP: Final = _gauge(
    "thread_up", "1 while the thread whose id is on the page of a live process is there, 0 after it.", "process", "kind"
)
THREAD_CPU: Final = _counter("thread_cpu_seconds", "User and system CPU time of those threads.", "process", "kind")
PROXY_VARIABLE: Final = _gauge(
    "proxy_variable_set", "1 when a process of the engine was started with this proxy variable, in any case.", "kind"
)
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
LISTENER_CHANGES: Final = _counter(
    "listener_changes",
    "Listening sockets that replaced or joined the port's first one, told by cookie.",
    "port",
    "role",
)
BOUND_SECONDS: Final = _gauge(
    "listener_bound_seconds", "For how long sockets have been bound to the port with nobody listening.", "port", "role"
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
PEER_CONNECTIONS: Final = _gauge(
    "peer_connections",
    "Connecting ends, on this host, of connections between the engine's processes, by the port they connect to.",
    "port",
    "role",
    "state",
)
CONNECTS: Final = _gauge("connects_pending", "Connections that the engine tries to open, unanswered for a second.")
CONNECTS_OLDEST: Final = _gauge("connects_pending_oldest_seconds", "For how long the oldest of them has been tried.")
RECEIVE_QUEUE: Final = _gauge("receive_queue_bytes", "Received bytes that the process has not read.", "port", "role")
SEND_QUEUE: Final = _gauge("send_queue_bytes", "Sent bytes that the peer has not acknowledged.", "port", "role")
RECEIVE_QUEUE_MAX: Final = _gauge("receive_queue_max_bytes", "The most of them in one socket.", "port", "role")
SEND_QUEUE_MAX: Final = _gauge("send_queue_max_bytes", "The most of them in one socket.", "port", "role")
QUEUES_STUCK: Final = _gauge(
    "queue_stuck_sockets",
    "Sockets whose receive or send queue was never empty and never got shorter for 5 s.",
    "port",
    "role",
    "kind",
)
ZERO_WINDOW: Final = _gauge(
    "connection_zero_window_sockets",
    "Sockets that may send nothing because the peer's receive window is closed: it does not read.",
    "port",
    "role",
    "kind",
)

# --- TCP_INFO and socket memory of those connections, by direction (kind); absent where the kernel does not tell
RTT_MEAN: Final = _gauge(
    "connection_rtt_mean_seconds", "Smoothed round-trip time, mean of established connections.", "port", "role", "kind"
)
RTT_MAX: Final = _gauge(
    "connection_rtt_max_seconds",
    "Smoothed round-trip time, longest of established connections.",
    "port",
    "role",
    "kind",
)
CONNECTION_MEMORY: Final = _gauge(
    "connection_memory_bytes",
    "Kernel memory of received and sent data (rmem_alloc and wmem_queued of INET_DIAG_SKMEMINFO).",
    "port",
    "role",
    "kind",
)
RETRANSMITS: Final = _counter(
    "connection_segments_retransmitted", "Segments sent again (tcpi_total_retrans).", "port", "role", "kind"
)
RECEIVER_LIMITED: Final = _counter(
    "connection_receiver_limited_seconds",
    "Time that connections could not send for the peer's window (tcpi_rwnd_limited), summed over them.",
    "port",
    "role",
    "kind",
)
BUFFER_LIMITED: Final = _counter(
    "connection_buffer_limited_seconds",
    "Time that connections could not send for their own send buffer (tcpi_sndbuf_limited), summed over them.",
    "port",
    "role",
    "kind",
)
UNACKED: Final = _gauge("connection_unacked_segments", "Segments in flight (tcpi_unacked).", "port", "role", "kind")
UNSENT: Final = _gauge(
    "connection_unsent_bytes", "Bytes written and not sent yet (tcpi_notsent_bytes).", "port", "role", "kind"
)
DELIVERY_MIN: Final = _gauge(
    "connection_delivery_min_bytes_per_second",
    "Delivery rate of the slowest connection that the network holds back; absent while it holds back none.",
    "port",
    "role",
    "kind",
)
DELIVERY_MEDIAN: Final = _gauge(
    "connection_delivery_median_bytes_per_second",
    "Median delivery rate of the connections that the network holds back; absent while it holds back none.",
    "port",
    "role",
    "kind",
)
NETWORK_LIMITED: Final = _gauge(
    "connections_network_limited",
    "Connections that the network holds back: something is on its way, and the application is not the one to wait for.",
    "port",
    "role",
    "kind",
)
UNANSWERED: Final = _gauge(
    "connections_unanswered", "Connections with data in and nothing out since: requests that wait.", "port", "role"
)
UNANSWERED_OLDEST: Final = _gauge(
    "connections_unanswered_oldest_seconds", "Time since the oldest of them brought its last data.", "port", "role"
)
UNIX_RECEIVE_QUEUE: Final = _gauge(
    "unix_receive_queue_bytes", "Bytes that wait in the engine's unix stream sockets for their reader.", "role"
)
UNIX_SEND_QUEUE: Final = _gauge(
    "unix_send_queue_bytes", "Kernel memory that written but unread bytes take in the engine's unix sockets.", "role"
)
UNIX_ACCEPT_DEPTH: Final = _gauge(
    "unix_accept_queue_depth", "Connections waiting for accept() at the role's listening unix socket.", "role"
)
UNIX_ACCEPT_LIMIT: Final = _gauge(
    "unix_accept_queue_limit", "Its listen() backlog: with one more than this, connect() blocks.", "role"
)
UNIX_BLOCKED: Final = _gauge(
    "unix_blocked_writers",
    "Sending unix sockets that poll as not writable: unread bytes take more than a quarter of their send buffer.",
    "role",
)
UNIX_STALE: Final = _gauge(
    "unix_stale_files", "Socket files in the runtime directory that nobody in the network namespace is bound to."
)

# --- the engine's network namespace: settings and what runs out in it
SYSCTL: Final = _gauge("sysctl", "Setting of the engine's own network namespace (net.core, net.ipv4).", "kind")
EPHEMERAL_USED: Final = _gauge(
    "ephemeral_ports_used",
    "Local ports taken towards the destination that takes most, TIME_WAIT included; snapshots say which.",
)
EPHEMERAL_LIMIT: Final = _gauge(
    "ephemeral_ports_limit", "Local ports for outgoing connections (ip_local_port_range without reserved ports)."
)
PORTS_IN_EPHEMERAL_RANGE: Final = _gauge(
    "service_ports_in_ephemeral_range",
    "Ports of the engine that an outgoing connection can take before it listens; snapshots say which.",
)
CONNTRACK_ENTRIES: Final = _gauge("conntrack_entries", "Connections tracked in the namespace.")
CONNTRACK_LIMIT: Final = _gauge("conntrack_limit", "Connections that can be tracked before packets are dropped.")
INTERFACE_SPEED: Final = _gauge(
    "interface_speed_bytes",
    "Bytes a second of the slowest interface that the role's connections receive from, or send to, by their route.",
    "role",
    "kind",
)
INTERFACE_UP: Final = _gauge("interface_up", "1 while all of those interfaces have a carrier.", "role", "kind")
INTERFACE_FASTEST: Final = _gauge(
    "interface_fastest_speed_bytes", "Bytes a second of the fastest interface there is that has a carrier."
)
NODELAY: Final = _gauge(
    "tcp_nodelay", "1 when the engine's own TCP sockets of the role have TCP_NODELAY, looked at once.", "role"
)
NETNS_ABORTS: Final = _counter(
    "netns_aborts", "Connections that this side cut off: data unread or late, memory, timeout, linger (TcpExt).", "kind"
)
NETNS_ABORT_KINDS: Final = {
    "TCPAbortOnData": "data",
    "TCPAbortOnClose": "close",
    "TCPAbortOnMemory": "memory",
    "TCPAbortOnTimeout": "timeout",
    "TCPAbortOnLinger": "linger",
}
NETNS_GAUGES: Final = {
    "tw": _gauge("netns_time_wait_sockets", "TCP sockets in TIME_WAIT (sockstat)."),
    "orphan": _gauge("netns_orphaned_sockets", "TCP sockets without a process, of the whole host (sockstat)."),
}

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
    "DelayedACKs": _counter("netns_delayed_acks", "Acknowledgements sent after the delay (TcpExt)."),
    "RetransSegs": _counter("netns_segments_retransmitted", "Segments sent again (Tcp)."),
}

# --- the judge: what is wrong now
FAULT: Final = _gauge("fault", "1 while the judge finds this fault in this process, else 0.", "fault", "process")
FAULT_SECONDS: Final = _gauge("fault_seconds", "For how long the fault has been there.", "fault", "process")
PROBE_UP: Final = _gauge(
    "probe_up", "1 when the last probe (--probe) was answered, 0 when not; absent before the first answer."
)
FAULT_EVIDENCE: Final = _gauge(
    "fault_evidence", "What the judgement rests on, such as messages sent and not decoded.", "fault", "process", "kind"
)

# --- scoreboard: requests and stages
REQUESTS: Final = _counter("requests", "Finished requests by outcome.", "outcome")
REQUESTS_SHED: Final = _counter("requests_shed", "Requests refused with 503 at once, by reason.", "reason")
REQUEST_ERRORS: Final = _counter("request_errors", "Errors told to clients, as an answer or in a stream.", "class")
CLIENT_DISCONNECTS: Final = _counter("client_disconnects", "Clients that left before their answer was complete.")
CORE_ENDED: Final = _counter(
    "core_requests_ended",
    "Sequences that the core ended early: aborted on the API's word (client gone, stop string, timeout), or failed.",
    "outcome",
)
REQUESTS_RECEIVED: Final = _counter("requests_received", "HTTP requests for a completion that arrived.")
REQUESTS_INFLIGHT: Final = _gauge("requests_inflight", "Requests between arrival and end of the response.")
REQUESTS_WAITING: Final = _gauge("requests_waiting", "Requests in the core that no step has taken yet.")
REQUESTS_RUNNING: Final = _gauge("requests_running", "Requests in the core's running batch.")
REQUESTS_AT: Final = _gauge(
    "requests_inflight_at",
    "Requests in the API process by what they do: receive, wait for a first output, stream.",
    "kind",
)
OLDEST: Final = _gauge(
    "oldest_age_seconds",
    "Age of the oldest one there: any request, or by what it does, in the core's queue or batch, or output being sent.",
    "kind",
)
GATE: Final = _gauge("admission_gate", "1 for the state of the gate that lets requests in, 0 for the others.", "state")
RATE_LIMIT: Final = _gauge(
    "admission_rate_limit", "Requests a second that the adaptive limiter lets in; absent while it is off."
)
HEALTH_PROBLEMS: Final = _gauge("health_problems", "Reasons for which /health fails for want of progress.")
STAGE_DURATION: Final = _histogram("stage_duration_seconds", "Duration of a request's stage.", "stage")
REQUEST_DURATION: Final = _histogram("request_duration_seconds", "HTTP request to end of response.")
TIME_TO_FIRST_TOKEN: Final = _histogram(
    "time_to_first_token_seconds", "HTTP request to first output received from the core."
)
TOKENS: Final = _counter("tokens", "Tokens by kind.", "kind")
STAMPS_CLAMPED: Final = _counter("stamps_clamped", "Stamps moved because a clock step put them out of order.")

# --- scoreboard: queues and messages between the processes
QUEUE_DEPTH: Final = _gauge(
    "queue_depth",
    "Messages in the core's queues: decoded and not taken (input), queued and not sent (output).",
    "kind",
)
INPUT_UNRECEIVED: Final = _gauge(
    "input_unreceived_messages", "Messages that the API process sent and the core has not yet decoded."
)
INPUT_UNRECEIVED_AGE: Final = _gauge(
    "input_unreceived_age_seconds",
    "How long input messages have been waiting without the core decoding any; 0 when none.",
)
MESSAGES: Final = _counter("messages", "Messages through the input and output sockets.", "role", "kind")
DISCONNECTS: Final = _counter(
    "socket_disconnects",
    "Connections to the engine's own socket that ended: its process left, or the peer spoke no ZMTP or sent a frame "
    "too large to receive.",
    "role",
)
MESSAGE_BYTES: Final = _counter("message_bytes", "Bytes of those messages.", "role", "kind")
MESSAGE_SIZE: Final = _histogram("message_size_bytes", "Sizes of those messages.", "role", coarse=True)
OUTPUT_UNRECEIVED: Final = _gauge(
    "output_unreceived_messages", "Output messages sent by the core and not yet received by the API process."
)
OUTPUT_UNRECEIVED_AGE: Final = _gauge(
    "output_unreceived_age_seconds",
    "How long output messages have been waiting without any being received; 0 when none.",
)
INPUT_ENCODE: Final = _histogram(
    "input_encode_seconds", "Serialization of an input message in the API process.", coarse=True
)
INPUT_SEND_CALL: Final = _histogram("input_send_call_seconds", "The send call of an input message.", coarse=True)
INPUT_DECODE: Final = _histogram(
    "input_decode_seconds", "Deserialization of an input message in the core.", coarse=True
)
INPUT_QUEUE_WAIT: Final = _histogram(
    "input_queue_wait_seconds", "Input message decoded to taken by the core's main thread.", coarse=True
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
FORWARD_DEVICE: Final = _histogram(
    "forward_device_seconds", "Forward pass of one step on its device, by the device's own clock on a GPU.", coarse=True
)
STEP_TOKENS: Final = _gauge("step_tokens", "Tokens in the core's last step, or in the one that runs.")
STEP_LONGEST: Final = _gauge("step_longest_seconds", "The longest of the core's last 64 to 128 steps.")
CORE_PHASE: Final = _gauge("core_phase", "Cores whose main thread is in this phase of its loop.", "state")
EVENT_LOOP_LAG: Final = _histogram(
    "event_loop_lag_seconds", "How late the API's event loop ran its 100 ms tick.", coarse=True
)
KV_BLOCKS: Final = _gauge("kv_cache_blocks", "Blocks of the KV cache by state.", "state")
PREFIX_CACHE: Final = _counter(
    "prefix_cache_tokens", "Prompt tokens that were looked up in the prefix cache, and those found there.", "kind"
)
PREEMPTIONS: Final = _counter("preemptions", "Sequences put back to the queue because the KV cache was full.")
PROCESS_RESTARTS: Final = _counter(
    "process_restarts", "Times the launcher started the process again, after a death or for a reload.", "process"
)
LOG_RECORDS: Final = _counter("log_records", "Log records; error includes critical ones.", "process", "level")
HEARTBEAT: Final = _gauge(
    "thread_heartbeat_timestamp_seconds",
    "Unix time at which the IO thread last came round its loop.",
    "process",
    "kind",
)
PROGRESS: Final = _gauge(
    "last_progress_timestamp_seconds",
    "Unix time of the process's last sign of progress (loop tick, step phase, export).",
    "process",
)

# --- scoreboard: span exporter
SPANS: Final = _counter("spans", "Spans by what became of them.", "outcome")
EXPORT_FAILURES: Final = _counter("span_export_failures", "Batches of spans that the OTLP endpoint did not take.")
EXPORT_DURATION: Final = _histogram("span_export_duration_seconds", "Sending one batch of spans.", coarse=True)
RECORDS_READ: Final = _counter("request_records_read", "Request records that the span exporter has read.")
RECORDS_LOST: Final = _counter("request_records_lost", "Request records overwritten before the reader came.", "process")

# --- GPUs through NVML: those of the engine's processes, or all visible ones while none of its processes is on one
GPUS: Final = _gauge("gpus", "GPUs that the numbers below are of.")
GPU_UTILIZATION: Final = _gauge("gpu_utilization_ratio", "Share of the time in which a kernel ran, mean of the GPUs.")
GPU_MEMORY_USED: Final = _gauge("gpu_memory_used_bytes", "Memory in use, by whomever.")
GPU_MEMORY: Final = _gauge("gpu_memory_bytes", "Memory there is.")
GPU_POWER: Final = _gauge("gpu_power_watts", "Power draw.")
GPU_ENERGY: Final = _counter("gpu_energy_joules", "Energy since the sidecar first saw them.")
GPU_PROCESS_MEMORY: Final = _gauge("gpu_process_memory_bytes", "GPU memory of the process.", "process")

METRICS: Final = (
    *(value for value in list(globals().values()) if isinstance(value, Metric)),
    *NETNS_COUNTERS.values(),
    *NETNS_GAUGES.values(),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
