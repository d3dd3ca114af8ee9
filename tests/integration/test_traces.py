"""Real requests through the real engine, their spans counted where they arrive."""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from enginescope.otlp_sink import SpanStore
from telemetry.stages import STAGES, STEP_SPAN
from tests.conftest import eventually, free_port, running
from tests.integration.conftest import Engine, running_engine, running_sink

Span = dict[str, Any]
REQUESTS = 24


@contextmanager
def rotel(sink_port: int) -> Iterator[int]:
    """A real OpenTelemetry collector in front of the sink; gives its port."""
    spec = find_spec("rotel")
    assert spec is not None, "rotel is part of the dev extra"
    assert spec.origin is not None
    port = free_port()
    command = (
        str(Path(spec.origin).parent / "rotel-agent"), "start",
        "--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}",
        "--exporter", "otlp", "--otlp-exporter-protocol", "http",
        "--otlp-exporter-endpoint", f"http://127.0.0.1:{sink_port}", "--batch-timeout", "200ms",
    )  # fmt: skip
    with running(*command):
        yield port


@contextmanager
def traced_engine(runtime_dir: Path, otlp_port: int, **environment: str) -> Iterator[Engine]:
    endpoint = f"http://127.0.0.1:{otlp_port}"
    flags = ("--step-trace-ratio=1",)
    with running_engine(runtime_dir, *flags, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **environment) as engine:
        yield engine


def send(engine: Engine, number: int) -> tuple[str, str]:
    """One request, plain or streamed, under a trace of its client's; gives (trace id, client's span id)."""
    trace_id, span_id = f"{random.getrandbits(128):032x}", f"{random.getrandbits(64):016x}"
    body: dict[str, Any] = {"max_tokens": 5 + number, "temperature": 0, "ignore_eos": True, "stream": number % 2 == 0}
    body |= {"prompt": f"request {number}"}
    with engine.client() as client:
        response = client.post("/v1/completions", json=body, headers={"traceparent": f"00-{trace_id}-{span_id}-01"})
    assert response.status_code == 200
    return trace_id, span_id


def complete_trace(store: SpanStore, trace_id: str) -> list[Span] | None:
    spans = store.trace(trace_id)
    return spans if len(spans) >= len(STAGES) + 1 else None


def check_trace(spans: list[Span], client_span_id: str) -> None:
    by_name = {span["name"]: span for span in spans}
    server = by_name["POST /v1/completions"]
    stages = [by_name[stage.span_name] for stage in STAGES]
    assert len(spans) == len(by_name) == 7
    assert (server["parent_span_id"], server["kind"]) == (client_span_id, "SPAN_KIND_SERVER")
    assert {stage["parent_span_id"] for stage in stages} == {server["span_id"]}
    assert len({span["resource"]["process.pid"] for span in spans}) >= 2
    starts = [stage["start_ns"] for stage in stages]
    assert starts == sorted(starts)
    for stage in stages:
        assert server["start_ns"] <= stage["start_ns"] <= stage["end_ns"] <= server["end_ns"]
    assert server["attributes"]["engine.stamps_clamped"] == 0
    assert server["attributes"]["http.response.status_code"] == 200
    tokens = server["attributes"]["gen_ai.usage.output_tokens"]
    assert by_name["engine.forward"]["attributes"]["engine.stage.count"] == tokens
    assert by_name["engine.output_socket.send"]["attributes"]["engine.stage.count"] == tokens


@pytest.mark.parametrize("through", ["sink", "rotel"])
def test_each_concurrent_request_is_one_whole_trace(runtime_dir: Path, through: str) -> None:
    with running_sink() as (_, store, sink_port):
        if through == "rotel":
            with rotel(sink_port) as port, traced_engine(runtime_dir, port) as engine:
                run_and_check(engine, store)
        else:
            with traced_engine(runtime_dir, sink_port) as engine:
                run_and_check(engine, store)


def run_and_check(engine: Engine, store: SpanStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(lambda number: send(engine, number), range(REQUESTS)))
    for trace_id, client_span_id in sent:
        check_trace(eventually("the trace", lambda t=trace_id: complete_trace(store, t)), client_span_id)  # type: ignore[misc]
    exporter, api = engine.page("exporter"), engine.page("api")
    assert (api["stamps_clamped"], exporter["records_lost"], exporter["spans_dropped"]) == (0, 0, 0)
    check_steps(store, {trace_id for trace_id, _ in sent})


def check_steps(store: SpanStore, trace_ids: set[str]) -> None:
    """Every step was sampled here, so that the links of all steps name all requests."""
    eventually("links to every request", lambda: linked_traces(store) == trace_ids)
    steps = store.named(STEP_SPAN)
    assert all(len(step["links"]) == step["attributes"]["engine.step.batch_size"] for step in steps)


def linked_traces(store: SpanStore) -> set[str]:
    return {link["trace_id"] for step in store.named(STEP_SPAN) for link in step["links"]}


def test_an_unsampled_parent_is_respected_and_counted(runtime_dir: Path) -> None:
    with running_sink() as (_, store, port), traced_engine(runtime_dir, port) as engine:
        exporter = engine.page("exporter")
        with engine.client() as client:
            headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}
            client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers=headers)
        eventually("the record", lambda: exporter["records_unsampled"] == 1)
        assert store.trace("a" * 32) == []


def test_spans_that_no_collector_takes_are_counted(runtime_dir: Path) -> None:
    with traced_engine(runtime_dir, free_port(), OTEL_EXPORTER_OTLP_TIMEOUT="1") as engine:
        exporter = engine.page("exporter")
        send(engine, 1)
        eventually("the drop", lambda: exporter["spans_dropped"] >= 7)
        assert engine.page("api")["requests_ok"] == 1


def test_a_killed_exporter_goes_on_where_it_was(runtime_dir: Path) -> None:
    with running_sink() as (_, store, port), traced_engine(runtime_dir, port) as engine:
        first, parent = send(engine, 1)
        eventually("the first trace", lambda: complete_trace(store, first))
        exporter = engine.page("exporter")
        eventually("the position", lambda: exporter["source_position"] == 1)
        os.kill(exporter.header.pid, signal.SIGKILL)
        second, _ = send(engine, 2)
        eventually("the second trace", lambda: complete_trace(store, second))
        check_trace(store.trace(first), parent)  # not exported a second time
        assert engine.page("exporter")["records_lost"] == 0


def test_a_stopped_exporter_does_not_slow_the_engine(runtime_dir: Path) -> None:
    with running_sink() as (_, store, port), traced_engine(runtime_dir, port) as engine:
        os.kill(engine.page("exporter").header.pid, signal.SIGSTOP)
        trace_ids = [send(engine, number)[0] for number in range(5)]
        os.kill(engine.page("exporter").header.pid, signal.SIGCONT)
        for trace_id in trace_ids:
            eventually("the trace", lambda t=trace_id: complete_trace(store, t))  # type: ignore[misc]


def test_the_last_requests_before_sigterm_are_exported(runtime_dir: Path) -> None:
    with running_sink() as (_, store, port):
        with traced_engine(runtime_dir, port, OTEL_BSP_SCHEDULE_DELAY="60000") as engine:
            trace_id, parent = send(engine, 3)
            os.kill(engine.pid, signal.SIGTERM)
            eventually("the trace", lambda: complete_trace(store, trace_id), 10)
        check_trace(store.trace(trace_id), parent)
