"""The page receiver over real HTTP: what Alertmanager may send, and what it must not."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from enginescope import pages
from enginescope.page_receiver import Page, PageReceiver, PageReceiverSettings, format_page

RUNBOOK = "https://example.com/runbook.md"


def alert(name: str = "TCPBacklogFull", status: str = "firing", **changes: Any) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, "severity": "critical", "engine": "chat", "port": "8000"},
        "annotations": {"summary": "Queue is full.", "description": "Look at it.", "runbook_url": RUNBOOK},
        "startsAt": "2026-01-02T03:04:05.678901234Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "1a2b",
        **changes,
    }


def message(*alerts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{alertname="X"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "page",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://host:9093",
        "alerts": list(alerts),
        **changes,
    }


@pytest.fixture
def receiver() -> Iterator[PageReceiver]:
    with PageReceiver(PageReceiverSettings("127.0.0.1:0", deadman_timeout=60)) as running:
        yield running


@pytest.fixture
def client(receiver: PageReceiver) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{receiver.port}", timeout=5) as talking:
        yield talking


def _pages(client: httpx.Client, since: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/pages", params={"since": since}).raise_for_status().json()
    return found


def _health(client: httpx.Client) -> dict[str, Any]:
    health: dict[str, Any] = client.get("/healthz").raise_for_status().json()
    return health


def test_a_group_becomes_one_page_for_each_alert_with_its_own_status(client: httpx.Client) -> None:
    before = time.time_ns()
    group = message(alert(), alert("EngineDown", "resolved", fingerprint="3c4d"))
    assert client.post("/webhook", json=group).status_code == 200
    first, second = _pages(client)
    assert before < first.pop("received_ns") < time.time_ns()
    assert first == {
        "id": 1,
        "receiver": "page",
        "status": "firing",
        "alert": "TCPBacklogFull",
        "severity": "critical",
        "labels": {"alertname": "TCPBacklogFull", "severity": "critical", "engine": "chat", "port": "8000"},
        "annotations": {"summary": "Queue is full.", "description": "Look at it.", "runbook_url": RUNBOOK},
        "starts_at": "2026-01-02T03:04:05.678901234Z",
        "fingerprint": "1a2b",
    }
    assert (second["id"], second["alert"], second["status"]) == (2, "EngineDown", "resolved")
    assert [page["id"] for page in _pages(client, since=1)] == [2]
    assert _pages(client, since=2) == []


def test_what_alertmanager_may_leave_out_or_add_is_accepted(client: httpx.Client) -> None:
    bare = {"status": "resolved", "labels": {"alertname": "X"}, "annotations": {}, "endsAt": "0001-01-01T00:00:00Z"}
    body = json.dumps(message(bare, unknownNewField=1)) + "\n"
    assert client.post("/webhook", content=body).status_code == 200
    assert client.post("/webhook", json={"version": "4", "alerts": [{"status": "firing", "labels": {}}]}).is_success
    first, second = _pages(client)
    assert (first["alert"], first["starts_at"], first["annotations"]) == ("X", "", {})
    assert (second["alert"], second["severity"]) == ("unnamed", "")
    assert first["fingerprint"] != second["fingerprint"]
    assert _health(client)["rejected"] == 0


def test_a_repeat_is_counted_and_not_kept(client: httpx.Client) -> None:
    later = "2026-01-02T04:00:00Z"
    for sent in (alert(), alert(), alert(status="resolved"), alert(status="resolved"), alert(startsAt=later)):
        client.post("/webhook", json=message(sent))
    assert [(page["status"], page["starts_at"][11:16]) for page in _pages(client)] == [
        ("firing", "03:04"),
        ("resolved", "03:04"),
        ("firing", "04:00"),
    ]
    assert _health(client)["repeated"] == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not a webhook message of Alertmanager"),
        (b"{", "not a webhook message of Alertmanager"),
        (b"\xff\xfe", "not a webhook message of Alertmanager"),
        (b"[]", "not a webhook message of Alertmanager"),
        (b'{"version":"3","alerts":[]}', "expected Alertmanager's webhook version 4, got version '3'"),
        (b'{"alerts":[]}', "expected Alertmanager's webhook version 4, got version None"),
        (b'{"version":"4"}', "missing required field `alerts`"),
        (b'{"version":"4","alerts":[{"labels":{}}]}', "missing required field `status`"),
        (b'{"version":"4","alerts":[{"status":"maybe","labels":{}}]}', "Invalid enum value 'maybe'"),
        (b'{"version":"4","alerts":[{"status":"firing","labels":{"a":1}}]}', "Expected `str`, got `int`"),
    ],
)
def test_anything_else_is_refused_with_a_sentence_and_counted(client: httpx.Client, body: bytes, sentence: str) -> None:
    answer = client.post("/webhook", content=body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]
    assert _health(client)["rejected"] == 1
    assert _pages(client) == []


def test_the_body_has_a_limit_and_needs_a_length(client: httpx.Client) -> None:
    assert client.post("/webhook", content=b" " * ((1 << 20) + 1)).status_code == 413
    assert client.post("/webhook", content=iter([b"{}"])).status_code == 411
    assert _health(client)["rejected"] == 2


def test_unknown_paths_and_ids_are_answered(client: httpx.Client) -> None:
    assert client.get("/").status_code == 404
    assert client.post("/other", json={}).status_code == 404
    assert client.get("/pages", params={"since": "-1"}).status_code == 400


def test_memory_is_bounded_and_what_fell_out_is_counted(client: httpx.Client) -> None:
    for start in range(0, pages.KEPT + 50, 50):
        client.post("/webhook", json=message(*(alert(fingerprint=f"{start + i}") for i in range(50))))
    kept = _pages(client)
    assert len(kept) == pages.KEPT
    assert kept[-1]["id"] == pages.KEPT + 50
    assert (_health(client)["pages"], _health(client)["dropped"]) == (pages.KEPT + 50, 50)


def test_watchdog_is_a_sign_of_life_and_no_page(client: httpx.Client) -> None:
    assert _health(client)["deadman"]["last_seen_ns"] is None
    client.post("/deadman", json=message(alert("Watchdog")))
    client.post("/deadman", json=message(alert("Watchdog", "resolved")))
    client.post("/deadman", json=message(alert("Other")))
    deadman = _health(client)["deadman"]
    assert deadman["count"] == 1
    assert 0 <= time.time_ns() - deadman["last_seen_ns"] < 5e9
    assert deadman["timeout_seconds"] == 60
    assert _pages(client) == []


def test_silence_is_paged_once_and_its_end_too() -> None:
    with (
        PageReceiver(PageReceiverSettings("127.0.0.1:0", deadman_timeout=0.3)) as receiver,
        httpx.Client(base_url=f"http://127.0.0.1:{receiver.port}") as client,
    ):
        client.post("/deadman", json=message(alert("Watchdog")))
        firing = _wait_for_pages(client, 1)[0]
        assert (firing["alert"], firing["status"], firing["severity"]) == ("Watchdog", "firing", "critical")
        assert firing["annotations"]["summary"].startswith("No Watchdog heard for 0 s")
        assert firing["annotations"]["runbook_url"] == RUNBOOK
        time.sleep(0.4)
        assert len(_pages(client)) == 1
        assert _health(client)["deadman"]["silent"]
        client.post("/deadman", json=message(alert("Watchdog", "resolved")))
        assert len(_pages(client)) == 1
        client.post("/deadman", json=message(alert("Watchdog")))
        resolved = _pages(client)[1]
        assert (resolved["status"], resolved["fingerprint"]) == ("resolved", firing["fingerprint"])
        assert not _health(client)["deadman"]["silent"]
        assert _wait_for_pages(client, 3)[2]["status"] == "firing"


def test_a_receiver_that_nobody_ever_called_pages_too() -> None:
    with (
        PageReceiver(PageReceiverSettings("127.0.0.1:0", deadman_timeout=0.2)) as receiver,
        httpx.Client(base_url=f"http://127.0.0.1:{receiver.port}") as client,
    ):
        assert _wait_for_pages(client, 1)[0]["alert"] == "Watchdog"


def _wait_for_pages(client: httpx.Client, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 5
    while len(found := _pages(client)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def _page(**changes: Any) -> Page:
    notice = msgspec.convert(alert(**changes), pages.Notice)
    page = pages.PageStore().add("page", notice)
    assert page is not None
    return page


def test_a_page_reads_as_one_paragraph() -> None:
    text = format_page(_page())
    assert text.startswith("FIRING critical TCPBacklogFull: Queue is full. Since 2026-01-0")
    assert text.endswith(f"Look at it. Runbook: {RUNBOOK}")
    assert "\n" not in text


def test_a_resolved_page_says_how_long_it_lasted() -> None:
    page = msgspec.structs.replace(
        _page(status="resolved", startsAt="2026-01-01T00:00:00Z"), received_ns=1767225600 * 10**9
    )
    lengths = {5: "5 s", 125: "2 min 5 s", 7500: "2 h 5 min"}
    for seconds, words in lengths.items():
        ended = msgspec.structs.replace(page, received_ns=page.received_ns + seconds * 10**9)
        assert format_page(ended) == f"RESOLVED critical TCPBacklogFull: Queue is full. It lasted {words}."


def test_a_page_without_annotations_says_where() -> None:
    text = format_page(_page(annotations=None, startsAt="0001-01-01T00:00:00Z"))
    assert text == "FIRING critical TCPBacklogFull: engine chat, port 8000."


def test_labels_cannot_steer_the_terminal() -> None:
    text = format_page(_page(annotations={"summary": "bad\x1b[2J\x07 \n\n text"}))
    assert text.startswith("FIRING critical TCPBacklogFull: bad[2J text Since")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "9095"], "--listen takes HOST:PORT, not '9095'"),
        (["--listen", "127.0.0.1:70000"], "--listen takes HOST:PORT"),
        (["--deadman-timeout", "0"], "--deadman-timeout must be above 0"),
        (["--deadman-timeout", "soon"], "--deadman-timeout takes a number, not 'soon'"),
    ],
)
def test_bad_flags_are_one_sentence_and_exit_2(arguments: list[str], sentence: str) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enginescope.page_receiver", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


def test_a_busy_port_is_one_sentence_and_exit_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = _run("--listen", address)
    assert done.returncode == 2
    assert done.stderr == f"enginescope.page_receiver: cannot listen on {address}: Address already in use\n"


def test_the_process_prints_pages_and_ends_on_sigterm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "enginescope.page_receiver", "--listen", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=10), base_url=f"http://{address}") as client:
            client.post("/webhook", json=message(alert())).raise_for_status()
        assert process.stdout is not None
        assert process.stdout.readline().startswith("FIRING critical TCPBacklogFull")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == 0
    finally:
        process.kill()
        process.communicate()
