"""The OpenAPI document is kept: whatever schemathesis thinks of, the answer has the described form and is no 500."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from instrumented_engine.api.errors import TABLE
from tests.conftest import eventually
from tests.integration.conftest import Engine, running_engine

EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "40"))
"""For each operation; a longer look takes more."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
ROUTES = ["/v1/completions", "/v1/chat/completions"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One that says 400 to most of what would take long."""
    with running_engine(tmp_path_factory.mktemp("rt"), "--max-model-len=64") as started:
        yield started


@pytest.fixture(scope="module")
def document(engine: Engine) -> Any:
    return schemathesis.openapi.from_url(f"{engine.url}/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES)
@bounded
@given(data=st.data())
def test_generated_requests_are_answered_as_described(
    document: Any, route: str, mode: GenerationMode, data: st.DataObject
) -> None:
    case = data.draw(document[route]["POST"].as_strategy(generation_mode=mode))
    case.call_and_validate(checks=CHECKS, timeout=60)


@pytest.mark.parametrize("route", ["/live", "/health", "/version", "/v1/models"])
@settings(bounded, max_examples=2)
@given(data=st.data())
def test_routes_without_a_body_answer_as_described(document: Any, route: str, data: st.DataObject) -> None:
    data.draw(document[route]["GET"].as_strategy()).call_and_validate(checks=CHECKS, timeout=60)


def test_the_document_describes_errors_and_streams(engine: Engine) -> None:
    paths = httpx.get(f"{engine.url}/openapi.json").json()["paths"]
    for route in ROUTES:
        answers = paths[route]["post"]["responses"]
        assert set(answers) == {"200", "4XX", *(str(one.status) for one in TABLE)}
        assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
        assert answers["503"]["headers"]["Retry-After"]["required"]
    assert set(paths["/health"]["get"]["responses"]) == {"200", "4XX", "503"}


def refused(engine: Engine, route: str, raw: bytes, kind: str = "application/json") -> None:
    answer = httpx.post(f"{engine.url}{route}", content=raw, headers={"Content-Type": kind}, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)
    assert answer.headers["connection"] == "close"


def is_object(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except (ValueError, RecursionError):
        return False


@given(raw=st.binary(max_size=200).filter(lambda raw: not is_object(raw)), route=st.sampled_from(ROUTES))
@bounded
def test_what_is_no_json_object_is_refused(engine: Engine, raw: bytes, route: str) -> None:
    refused(engine, route, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[" * 100_000,
        b'{"prompt": "x", "seed": ' + b"1" * 5000 + b"}",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "\xff": 1}',
        b'{"prompt": "x", "\\ud800": 1}',
        b'{"prompt": "x", "stop": "\\ud800"}',
        b'{"prompt": "x", "max_tokens": 1.5}',
        b'{"prompt": "x", "max_tokens": true}',
        b'{"prompt": [-1]}',
        b'{"prompt": []}',
        b'{"prompt": {"a": "b"}}',
        b'\xef\xbb\xbf{"prompt": "x"',
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_bodies_that_break_parsers_are_refused(engine: Engine, raw: bytes) -> None:
    refused(engine, ROUTES[0], raw)


def test_another_content_type_is_refused(engine: Engine) -> None:
    refused(engine, ROUTES[0], b'{"prompt": "x", "max_tokens": 1}', "text/plain")


def test_a_body_that_ends_too_early_costs_one_connection(engine: Engine) -> None:
    page = engine.page("api")
    before = page["client_disconnects"]
    with socket.create_connection(("127.0.0.1", engine.port), 10) as client:
        head = f"POST {ROUTES[0]} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        client.sendall(f'{head}Content-Length: 100\r\n\r\n{{"prompt":'.encode())
        eventually("it to be received", lambda: page["requests_inflight"] == 1)
    eventually("the count", lambda: page["client_disconnects"] == before + 1)
    assert httpx.get(f"{engine.url}/health").status_code == 200


def test_a_method_that_is_not_served_says_which_are(engine: Engine) -> None:
    answer = httpx.get(f"{engine.url}{ROUTES[0]}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_all_this_left_no_trace(engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    eventually(
        "rest", lambda: (api["requests_inflight"], core["requests_running"], core["kv_blocks_used"]) == (0, 0, 0)
    )
    assert (api["errors_internal"], api["log_error"], core["log_error"]) == (0, 0, 0)
