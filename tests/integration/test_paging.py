"""Real Prometheus, real Alertmanager, the shipped rules: from a condition in the metrics to a page, and back.

The sidecars are tiny HTTP servers whose numbers the tests set. The rules run much faster than shipped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import pytest
import yaml

from alerts import build
from deploy import render
from enginescope import toolchain
from enginescope.drills import batch, run
from enginescope.page_receiver import Page, PageReceiver, PageReceiverSettings
from enginescope.probe import is_ready, query, samples, total
from enginescope.stack import Stack

pytestmark = pytest.mark.long

HOST = "127.0.0.1"
T = TypeVar("T")

TIME_SCALE = 0.01
WAIT_SECONDS = 30.0


def free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        opened = [sockets.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in opened]


@dataclass
class Sidecar:
    """A scrape target of one engine; ``answering`` False refuses connections."""

    port: int
    numbers: dict[str, float] = field(default_factory=dict)
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self.be_well()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def be_well(self) -> None:
        listener = '{port="8000",role="http"}'
        self.numbers = {
            "enginescope_engine_up": 1,
            f"enginescope_listener_accept_queue_depth{listener}": 0,
            f"enginescope_listener_accept_queue_limit{listener}": 128,
            f"enginescope_listener_drops_total{listener}": 0,
            "enginescope_netns_listen_overflows_total": 0,
            f"enginescope_connections_limit{listener}": 1048576,
            'enginescope_process_max_fds{process="api"}': 1048576,
            'enginescope_process_start_time_seconds{process="api"}': 1.7e9,
        }
        self.hold(50)

    def overflow(self) -> None:
        listener = '{port="8000",role="http"}'
        self.numbers[f"enginescope_listener_accept_queue_depth{listener}"] = 129
        self.numbers[f"enginescope_listener_drops_total{listener}"] += 7
        self.numbers["enginescope_netns_listen_overflows_total"] += 7

    def hold(self, connections: float, limit: int = 0) -> None:
        """So many connections, each of them an open file; and another limit, when there is one."""
        self.numbers['enginescope_connections{port="8000",role="http",state="established"}'] = connections
        self.numbers['enginescope_process_open_fds{process="api"}'] = connections + 10
        if limit:
            self.numbers['enginescope_connections_limit{port="8000",role="http"}'] = limit
            self.numbers['enginescope_process_max_fds{process="api"}'] = limit

    def start(self) -> None:
        sidecar = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = "".join(f"{name} {value}\n" for name, value in sidecar.numbers.items()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@dataclass
class Paging:
    """The running pieces."""

    chat: Sidecar
    chat_spare: Sidecar
    code: Sidecar
    receiver: PageReceiver
    stack: Stack
    processes: dict[str, subprocess.Popen[bytes]]

    def pages(self, since: int = 0) -> list[Page]:
        return self.receiver.store.since(since)

    def last_id(self) -> int:
        return self.receiver.store.counts()["last_id"]

    def wait_for_page(self, alert: str, status: str, since: int, **labels: str) -> Page:
        def found() -> Page | None:
            for page in self.pages(since):
                if (page.alert, page.status) == (alert, status) and labels.items() <= page.labels.items():
                    return page
            return None

        return wait_for(found, f"{alert} {status} {labels}")


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = WAIT_SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.02)
    return value


def _tool(name: str) -> Path:
    try:
        return toolchain.find(name)
    except toolchain.ToolMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"paging is not tested: {error}")
        pytest.skip(f"PAGING IS NOT TESTED: {error}")


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()


def _prometheus_config(ports: dict[str, int], rules: Path, targets: dict[str, tuple[Sidecar, ...]]) -> str:
    config = yaml.safe_load(
        render.render_prometheus(
            engine="chat",
            sidecar=f"{HOST}:{ports['sidecar']}",
            prometheus=f"{HOST}:{ports['prometheus']}",
            alertmanager=f"{HOST}:{ports['alertmanager']}",
            rules=rules,
        )
    )
    config["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"{HOST}:{sidecar.port}" for sidecar in sidecars], "labels": {"engine": engine}}
        for engine, sidecars in targets.items()
    ]
    return yaml.safe_dump(config)


@pytest.fixture(scope="module")
def paging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paging]:
    folder = tmp_path_factory.mktemp("paging")
    binaries = {name: _tool(name) for name in ("prometheus", "alertmanager")}
    names = ("sidecar", "spare", "code", "prometheus", "alertmanager")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    rules = folder / "rules.yaml"
    assert build.main(["--output", str(rules), "--time-scale", str(TIME_SCALE)]) == 0
    with ExitStack() as started:
        receiver = started.enter_context(PageReceiver(PageReceiverSettings(f"{HOST}:0", deadman_timeout=5)))
        chat, spare, code = (started.enter_context(Sidecar(ports[name])) for name in names[:3])
        targets = {"chat": (chat, spare), "code": (code,)}
        (folder / "prometheus.yaml").write_text(_prometheus_config(ports, rules, targets))
        (folder / "alertmanager.yaml").write_text(render.render_alertmanager(page_receiver=f"{HOST}:{receiver.port}"))
        processes = {}
        for name, command in (
            ("alertmanager", render.alertmanager_command),
            ("prometheus", render.prometheus_command),
        ):
            line = command(binaries[name], folder / f"{name}.yaml", folder / name, f"{HOST}:{ports[name]}")
            processes[name] = started.enter_context(running(line, folder / f"{name}.log"))
        for name in processes:
            wait_for(partial(is_ready, ports[name], "/-/ready"), f"{name} ready")
        wait_for(lambda: receiver.deadman.state()["count"], "the first Watchdog")
        stack = Stack(
            pid=os.getpid(),
            engine="chat",
            ports={**ports, "page_receiver": receiver.port},
            pids={name: process.pid for name, process in processes.items()},
            runtime_dir=str(folder),
        )
        stack.save()
        yield Paging(chat, spare, code, receiver, stack, processes)


@pytest.fixture(autouse=True)
def well(paging: Paging) -> Iterator[None]:
    """Every test begins and ends with everything well and nothing firing."""
    yield
    for sidecar in (paging.chat, paging.chat_spare, paging.code):
        sidecar.be_well()
        if sidecar._server is None:
            sidecar.start()
    wait_for(lambda: not _firing(paging), "quiet", 60)


def _firing(paging: Paging) -> list[Page]:
    newest = {page.fingerprint: page for page in paging.pages()}
    return [page for page in newest.values() if page.status == "firing"]


def test_a_condition_becomes_a_page_and_its_end_resolves_it(paging: Paging) -> None:
    since, stamp = paging.last_id(), time.time_ns()
    paging.code.overflow()
    page = paging.wait_for_page("TCPBacklogFull", "firing", since, engine="code")
    seconds = (page.received_ns - stamp) / 1e9
    assert seconds < 8
    assert page.receiver == "page"
    assert page.labels == {
        "alertname": "TCPBacklogFull",
        "engine": "code",
        "port": "8000",
        "role": "http",
        "severity": "critical",
    }
    assert page.annotations["summary"].startswith("Accept queue of engine code, port 8000 (http): ")
    assert page.annotations["runbook_url"] == f"{build.RUNBOOK_BASE}/tcp_backlog_full/runbook.md"
    assert page.annotations["dashboard_url"].endswith(
        "/enginescope-sockets/tcp-backlog-full?viewPanel=103&var-engine=code"
    )
    paging.code.be_well()
    paging.code.numbers["enginescope_netns_listen_overflows_total"] = 7
    paging.wait_for_page("TCPBacklogFull", "resolved", page.id, engine="code")
    assert [page.alert for page in paging.pages(since)] == ["TCPBacklogFull"] * 2


def test_a_dead_sidecar_holds_back_its_own_engine_and_no_other(paging: Paging) -> None:
    """Engine chat is scraped at two addresses here, so that one can be dead while the other shows a full queue."""
    since = paging.last_id()
    paging.chat.stop()
    down = paging.wait_for_page("SidecarDown", "firing", since, engine="chat")
    assert down.labels["instance"] == f"{HOST}:{paging.chat.port}"
    for sidecar in (paging.chat_spare, paging.code):
        sidecar.overflow()
    paging.wait_for_page("TCPBacklogFull", "firing", since, engine="code")
    time.sleep(3)
    assert [page.labels["engine"] for page in paging.pages(since) if page.alert == "TCPBacklogFull"] == ["code"]
    paging.chat.start()
    paging.wait_for_page("SidecarDown", "resolved", since, engine="chat")
    paging.wait_for_page("TCPBacklogFull", "firing", since, engine="chat")


def test_a_dead_engine_holds_back_its_queue(paging: Paging) -> None:
    since = paging.last_id()
    paging.chat.numbers["enginescope_engine_up"] = paging.chat_spare.numbers["enginescope_engine_up"] = 0
    paging.wait_for_page("EngineDown", "firing", since, engine="chat")
    held_back = {"TCPBacklogFull", "ConnectionsNearLimit", "FDExhausted"}
    for sidecar in (paging.chat, paging.code):
        sidecar.overflow()
        sidecar.hold(100, limit=100)
    for alert in held_back:
        paging.wait_for_page(alert, "firing", since, engine="code")
    time.sleep(2)
    assert all(_is_firing(paging, alert, "chat") for alert in held_back)
    assert {page.labels["engine"] for page in paging.pages(since) if page.alert in held_back} == {"code"}


def test_growth_is_a_page_until_the_limit_is_near(paging: Paging) -> None:
    """Both engines grow alike. Engine chat is at its limits already, so its growth is no news."""
    since, begin = paging.last_id(), time.monotonic()
    growth = ("ConnectionGrowth", "FDGrowth")

    def grown() -> bool:
        connections = 100 + 60 * (time.monotonic() - begin)
        for sidecar in (paging.chat, paging.chat_spare):
            sidecar.hold(connections, limit=100)
        paging.code.hold(connections)
        paged = {(page.alert, page.labels["engine"]) for page in paging.pages(since)}
        return {(alert, "code") for alert in growth} <= paged and all(_is_firing(paging, a, "chat") for a in growth)

    wait_for(grown, "growth of engine code")
    time.sleep(1)
    pages = {(page.alert, page.labels["engine"], page.receiver) for page in paging.pages(since)}
    assert pages == {
        ("ConnectionsNearLimit", "chat", "page"),
        ("FDExhausted", "chat", "page"),
        ("ConnectionGrowth", "code", "ticket"),
        ("FDGrowth", "code", "ticket"),
    }


def _is_firing(paging: Paging, alert: str, engine: str) -> bool:
    """Whether Prometheus says so, whatever Alertmanager makes of it."""
    selector = f'ALERTS{{alertname="{alert}",engine="{engine}",alertstate="firing"}}'
    return query(paging.stack.ports["prometheus"], quote(selector)) is not None


class FakeDrill:
    """Takes the engine away in the numbers, and may forget to."""

    __doc__ = "Sets a number."

    def __init__(self, paging: Paging, breaks: bool = True) -> None:
        self._paging, self._up = paging, 0 if breaks else 1
        self.mended = False

    @contextmanager
    def inject(self, stack: Stack) -> Iterator[int]:
        stamp = time.time_ns()
        self._set(self._up)
        try:
            yield stamp
        finally:
            self._set(1)
            self.mended = True

    def evidence(self, stack: Stack) -> bool:
        return total(samples(stack.ports["sidecar"]), "enginescope_engine_up") == 0

    def _set(self, up: int) -> None:
        for sidecar in (self._paging.chat, self._paging.chat_spare):
            sidecar.numbers["enginescope_engine_up"] = up


def test_a_drill_measures_evidence_page_and_resolution(paging: Paging) -> None:
    told: list[str] = []
    result = run.run_drill("engine_down", paging.stack, told.append, FakeDrill(paging))
    assert result.reason is None
    assert result.paged
    assert result.seconds_to_evidence is not None
    assert result.seconds_to_page is not None
    assert result.seconds_to_resolved is not None
    assert 0 < result.seconds_to_evidence < result.seconds_to_page < result.seconds_to_resolved
    assert result.seconds_to_page < 10
    assert any("FIRING critical EngineDown: Engine chat is down" in line for line in told)
    assert result.as_dict().keys() >= {"name", "paged", "seconds_to_evidence", "seconds_to_page", "seconds_to_resolved"}


def test_a_drill_without_a_page_says_so_and_mends(paging: Paging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PAGE_SECONDS", -3.0)
    broken = FakeDrill(paging, breaks=False)
    result = run.run_drill("engine_down", paging.stack, lambda _: None, broken)
    assert (result.paged, result.seconds_to_page) == (False, None)
    assert result.reason == "no EngineDown page for engine chat came within 2 s"
    assert broken.mended


def test_a_drill_waits_for_a_quiet_start(paging: Paging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "QUIET_SECONDS", 0.5)
    paging.chat.numbers["enginescope_engine_up"] = 0
    result = run.run_drill("engine_down", paging.stack, lambda _: None, FakeDrill(paging))
    assert result.reason == "EngineDown was firing or its cause was there already, 0 s long"
    assert not result.paged


def test_an_interrupt_mends_and_goes_on(paging: Paging, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Page:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.Run, "_wait_for_page", interrupt)
    broken = FakeDrill(paging)
    with pytest.raises(KeyboardInterrupt):
        run.run_drill("engine_down", paging.stack, lambda _: None, broken)
    assert broken.mended


def test_the_watchdog_drill_stops_prometheus_and_the_receiver_pages(paging: Paging) -> None:
    (result,) = batch.run_drills(["watchdog"], paging.stack, lambda _: None)
    assert result.reason is None
    assert result.paged
    assert is_ready(paging.stack.ports["prometheus"], "/-/ready")
