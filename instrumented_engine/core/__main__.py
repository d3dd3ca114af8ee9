"""``python -m instrumented_engine.core``: load the model, connect to the API process, run the loop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import torch
import zmq

from instrumented_engine import faults, wire
from instrumented_engine.config import EngineSettings
from instrumented_engine.core.blocks import BlockPool
from instrumented_engine.core.input_thread import InputThread
from instrumented_engine.core.loop import CoreLoop
from instrumented_engine.core.output_thread import SEND_RETRY_MS, OutputThread
from instrumented_engine.core.runner import ForwardTimer, ModelRunner
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.cpus import bind_process
from instrumented_engine.model.cache import KVCache
from instrumented_engine.model.config import ModelConfig
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.loaders import load_model
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.process import count_logs, die_with_parent, end_with_sentence, start_logging
from instrumented_engine.sockets import configure
from telemetry.layout import CORE, endpoint_roles
from telemetry.scoreboard import PageError, Writer, runtime_directory
from telemetry.settings import parse_or_exit

_log = logging.getLogger("instrumented_engine.core")
_JOIN_SECONDS = 2.0


def main() -> None:
    """Run the core until SIGTERM."""
    die_with_parent()
    settings = parse_or_exit(EngineSettings, "instrumented_engine.core")
    start_logging(settings.log_level)
    try:
        directory = Path(settings.runtime_dir) if settings.runtime_dir else runtime_directory(create=True)
        name = settings.core_name(settings.core_index)
        faults.name_process(name)
        page = Writer(directory, CORE, name, generation=settings.generation)
        count_logs(page)
        cpus = bind_process(settings.cpu_bind, settings.core_index, settings.data_parallel_size)
        device = _device(settings.device, settings.core_index)
        source = ModelSource.resolve(settings.model)
        torch.set_num_threads(settings.threads or _default_threads(cpus, settings.data_parallel_size))
        model = load_model(source, device, getattr(torch, settings.dtype))
    except (PageError, ModelUnavailable, ValueError) as error:
        sys.exit(end_with_sentence("instrumented_engine.core", error))
    page["main_thread_id"] = threading.get_native_id()
    _serve(settings, page, model, device)
    page.close()


def _device(name: str, core_index: int) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        return torch.device(name, core_index % torch.cuda.device_count())
    return torch.device(name)


def _default_threads(bound_cpus: int | None, cores: int) -> int:
    """What torch would choose, of the CPUs that are for this core alone."""
    chosen = torch.get_num_threads()
    return min(bound_cpus, chosen) if bound_cpus else max(chosen // cores, 1)


def _serve(settings: EngineSettings, page: Writer, model: Llama, device: torch.device) -> None:
    context = zmq.Context()
    input_queue: SimpleQueue[tuple[wire.InputMessage, int] | None] = SimpleQueue()
    output_queue: SimpleQueue[tuple[wire.OutputMessage, int] | None] = SimpleQueue()
    endpoints = settings.endpoints_of(settings.core_index)
    receiver = InputThread(_connect(context, zmq.PULL, endpoints.input, settings), input_queue, page)
    sender = OutputThread(_connect(context, zmq.PUSH, endpoints.output, settings), output_queue, page)
    loop = _build_loop(settings, page, model, device, (input_queue, output_queue))
    signal.signal(signal.SIGTERM, loop.stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which stops its children in order
    page.set_endpoints(endpoint_roles(settings.core_index, *endpoints))
    receiver.start()
    sender.start()
    ready = wire.Ready(settings.core_index, os.getpid(), str(page.path), _max_model_len(settings, model.config))
    output_queue.put((ready, page["phase_started_ns"]))
    page["output_messages_queued"] += 1
    loop.run()
    receiver.stop()
    sender.stop()
    for thread in (receiver, sender):
        thread.join(_JOIN_SECONDS)
    if not (receiver.is_alive() or sender.is_alive()):  # a socket must not be closed under a thread that uses it
        context.destroy(linger=SEND_RETRY_MS)


def _build_loop(
    settings: EngineSettings,
    page: Writer,
    model: Llama,
    device: torch.device,
    queues: tuple[
        SimpleQueue[tuple[wire.InputMessage, int] | None], SimpleQueue[tuple[wire.OutputMessage, int] | None]
    ],
) -> CoreLoop:
    max_model_len = _max_model_len(settings, model.config)
    blocks_per_sequence = -(-max_model_len // settings.kv_block_tokens)
    blocks = settings.kv_blocks or max(blocks_per_sequence, settings.max_num_seqs * blocks_per_sequence // 4)
    pool = BlockPool(blocks, settings.kv_block_tokens, prefix_cache=settings.prefix_cache)
    page["kv_blocks_total"] = blocks
    cache = KVCache(model.config, blocks, settings.kv_block_tokens, device, next(model.parameters()).dtype)
    _log.info(
        "KV cache: %d blocks of %d tokens, %.0f MiB",
        blocks,
        settings.kv_block_tokens,
        blocks * cache.bytes_per_block / 2**20,
    )
    runner = ModelRunner(model, cache, device, ForwardTimer(device, page.histogram("forward_device")))
    return CoreLoop(
        Scheduler(pool, settings.max_num_seqs, settings.max_num_batched_tokens),
        runner,
        *queues,
        page,
        max_model_len,
        model.config.vocab_size,
        settings.step_trace_ratio,
        settings.core_index,
    )


def _max_model_len(settings: EngineSettings, config: ModelConfig) -> int:
    return min(settings.max_model_len or config.max_positions, config.max_positions)


def _connect(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, settings: EngineSettings
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    configure(socket, endpoint, settings)
    socket.setsockopt(zmq.SNDTIMEO, SEND_RETRY_MS)
    socket.connect(endpoint)
    return socket


if __name__ == "__main__":
    main()
