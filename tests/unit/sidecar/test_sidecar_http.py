from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar import http
from sidecar.exposition import Exposition
from sidecar.http import MAX_CONNECTIONS, ListenError, MetricsServer
from sidecar.snapshot import Snapshot

LATEST = Snapshot(0, 0.0, "demo", True)
EXPOSITION = Exposition(lambda: LATEST, "1")


class Ready:
    def __init__(self) -> None:
        self.value = False

    def __call__(self) -> bool:
        return self.value


@pytest.fixture(scope="module")
def ready() -> Ready:
    return Ready()


@pytest.fixture(scope="module")
def server(ready: Ready) -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1", 0, EXPOSITION.answer, ready)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server: MetricsServer, path: str, **headers: str) -> HTTPResponse:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    response: HTTPResponse = urllib.request.urlopen(request, timeout=5)
    return response


def test_metrics_in_both_formats(server: MetricsServer) -> None:
    with get(server, "/metrics?x=1") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        assert b"enginescope_engine_up 1.0\n" in response.read()
    with get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0") as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        body = response.read()
        assert b"enginescope_engine_up 1.0\n" in body
        assert body.endswith(b"# EOF\n")


def test_health_and_readiness(server: MetricsServer, ready: Ready) -> None:
    with get(server, "/healthz") as response:
        assert response.status == 200
    ready.value = False
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(server, "/readyz")
    ready.value = True
    with get(server, "/readyz") as response:
        assert response.status == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server, "/nothing")


def test_a_busy_port_is_one_sentence(server: MetricsServer) -> None:
    with pytest.raises(ListenError, match=rf"cannot listen on 127.0.0.1:{server.port}: Address already in use"):
        MetricsServer("127.0.0.1", server.port, EXPOSITION.answer, lambda: True)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_malformed_requests_cost_nothing_else(server: MetricsServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass
    with get(server, "/healthz") as response:
        assert response.status == 200


def test_silent_clients_do_not_keep_prometheus_out(server: MetricsServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3 * MAX_CONNECTIONS)]
    started = time.monotonic()
    with get(server, "/metrics") as response:
        assert response.status == 200
    assert time.monotonic() - started < 2
    assert threading.active_count() < 3 * MAX_CONNECTIONS + 10
    for client in silent:
        client.close()


def test_a_silent_client_is_dropped_when_its_time_is_up(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CLIENT_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as silent:
        assert silent.recv(1) == b""
