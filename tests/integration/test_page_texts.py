"""What people read: a real Alertmanager with the shipped receivers and templates sends Slack, PagerDuty and mail."""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email import message_from_string
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy import render
from enginescope import toolchain

HOST = "127.0.0.1"
LABELS = {"engine": "chat", "port": "8000", "role": "http"}
SUMMARY = "Accept queue of engine chat, port 8000 (http): 7 connection attempts dropped <recently> & more."
RUNBOOK, DASHBOARD = "https://example.com/runbook.md", "http://grafana.example.com/d/x?var-engine=chat&from=now-1h"


def _tool(name: str) -> Path:
    try:
        return toolchain.find(name)
    except toolchain.ToolMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"pages are not read: {error}")
        pytest.skip(f"PAGES ARE NOT READ: {error}")


class Inbox:
    """Takes HTTP posts and mail."""

    def __init__(self) -> None:
        self.posts: dict[str, list[Any]] = {}
        self.mails: list[str] = []

    @contextmanager
    def http(self) -> Iterator[int]:
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.posts.setdefault(self.path, []).append(json.loads(body))
                self.send_response(202)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None:
                pass

        with serving(ThreadingHTTPServer((HOST, 0), Handler)) as port:
            yield port

    @contextmanager
    def smtp(self) -> Iterator[int]:
        inbox = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 hello\r\n")
                while line := self.rfile.readline():
                    command = line[:4].upper().strip()
                    if command == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        inbox.mails.append("".join(iter(lambda: self.rfile.readline().decode(), ".\r\n")))
                    self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 ok\r\n")

        with serving(socketserver.ThreadingTCPServer((HOST, 0), Handler)) as port:
            yield port


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[int]:
    with server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _config(folder: Path, http: int, smtp: int) -> str:
    """The shipped configuration, its comments in force, its secrets in files and its addresses here."""
    text = (render.FOLDER / "alertmanager.yaml").read_text()
    config = yaml.safe_load(
        re.sub(r"(?m)^(\s*)# (?=smtp_|(?:pagerduty|slack|email)_configs:|\s)", r"\1", text).replace(
            "/etc/alertmanager/secrets", str(folder)
        )
    )
    (folder / "slack_webhook_url").write_text(f"http://{HOST}:{http}/slack")
    (folder / "pagerduty_routing_key").write_text("key-from-a-file")
    for name in [name for name in config["global"] if name.startswith("smtp_auth")]:
        del config["global"][name]
    config["global"] |= {
        "smtp_smarthost": f"{HOST}:{smtp}",
        "smtp_require_tls": False,
        "pagerduty_url": f"http://{HOST}:{http}/pagerduty",
    }
    config["templates"] = [str(render.FOLDER / pattern) for pattern in config["templates"]]
    for receiver in config["receivers"]:
        receiver["webhook_configs"][0]["url"] = f"http://{HOST}:{http}/{receiver['name']}"
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "0s", "group_interval": "1s"}
    return yaml.safe_dump(config)


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inbox]:
    """One critical alert and one warning, sent and resolved."""
    folder, got = tmp_path_factory.mktemp("texts"), Inbox()
    with ExitStack() as started:
        http, smtp = started.enter_context(got.http()), started.enter_context(got.smtp())
        (folder / "am.yaml").write_text(_config(folder, http, smtp))
        with socket.create_server((HOST, 0)) as free:
            address = f"{HOST}:{free.getsockname()[1]}"
        command = render.alertmanager_command(_tool("alertmanager"), folder / "am.yaml", folder / "data", address)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        started.callback(process.wait)
        started.callback(process.kill)
        client = started.enter_context(httpx.Client(base_url=f"http://{address}", timeout=10))
        until(lambda: _is_up(client), "Alertmanager ready")
        _send(client, {"startsAt": "2026-01-02T03:04:05Z"})
        until(lambda: len(got.mails) == 1 and got.posts.keys() >= {"/slack", "/pagerduty"}, "the pages")
        _send(client, {"startsAt": "2026-01-02T03:04:05Z", "endsAt": "2026-01-02T03:14:05Z"})
        until(lambda: len(got.mails) == 2 and len(got.posts["/slack"]) == 2, "their ends")
        yield got


def _is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").is_success
    except httpx.TransportError:
        return False


def _send(client: httpx.Client, times: dict[str, str]) -> None:
    annotations = {"summary": SUMMARY, "description": "Look.", "runbook_url": RUNBOOK, "dashboard_url": DASHBOARD}
    names = {"TCPBacklogFull": "critical", "FDGrowth": "warning"}
    alerts = [
        {"labels": {**LABELS, "alertname": name, "severity": severity}, "annotations": annotations, **times}
        for name, severity in names.items()
    ]
    client.post("/api/v2/alerts", json=alerts).raise_for_status()


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.05)


def test_slack_reads_well(inbox: Inbox) -> None:
    firing, resolved = (message["attachments"][0] for message in inbox.posts["/slack"])
    assert (firing["title"], firing["color"]) == ("WARNING FDGrowth on chat", "danger")
    assert firing["title_link"] == DASHBOARD
    assert firing["text"].splitlines() == [
        SUMMARY,
        "_warning, engine chat, port 8000, role http, since 03:04 UTC, 2 January_",
        "Look.",
        f"<{RUNBOOK}|runbook>  <{DASHBOARD}|dashboard>",
    ]
    assert (resolved["title"], resolved["color"]) == ("RESOLVED FDGrowth on chat", "good")
    assert resolved["text"].splitlines()[1:] == [
        "_warning, engine chat, port 8000, role http, from 03:04 to 03:14 UTC, 2 January_"
    ]


def test_pagerduty_reads_well_and_its_key_comes_from_a_file(inbox: Inbox) -> None:
    event = inbox.posts["/pagerduty"][0]
    assert event["routing_key"] == "key-from-a-file"
    assert event["payload"]["summary"] == "CRITICAL TCPBacklogFull on chat"
    assert event["payload"]["severity"] == "critical"
    assert [link["href"] for link in event["links"]] == [RUNBOOK, DASHBOARD]
    assert event["payload"]["custom_details"]["text"].splitlines() == [
        SUMMARY,
        "",
        "Where: engine chat, port 8000, role http",
        "How bad: critical",
        "When: since 03:04 UTC, 2 January",
        "Next: Look.",
        f"Runbook: {RUNBOOK}",
        f"Dashboard: {DASHBOARD}",
    ]


def test_mail_reads_well_as_text_and_as_html(inbox: Inbox) -> None:
    firing, resolved = map(message_from_string, inbox.mails)
    assert (firing["Subject"], resolved["Subject"]) == ("WARNING FDGrowth on chat", "RESOLVED FDGrowth on chat")
    text, html = (_decoded(part) for part in firing.walk() if not part.is_multipart())
    assert text.splitlines()[0] == SUMMARY
    assert "Where: engine chat, port 8000, role http" in text
    assert "&lt;recently&gt; &amp; more." in html
    assert f'<a href="{RUNBOOK}">runbook</a>' in html
    over, _ = (_decoded(part) for part in resolved.walk() if not part.is_multipart())
    assert over.splitlines()[-2:] == ["When: from 03:04 to 03:14 UTC, 2 January", "It is over."]


def _decoded(part: Any) -> str:
    body: bytes = part.get_payload(decode=True)
    return body.decode()


def test_webhooks_get_every_alert_with_its_links(inbox: Inbox) -> None:
    (page,) = inbox.posts["/page"][0]["alerts"]
    assert (page["labels"]["alertname"], page["status"]) == ("TCPBacklogFull", "firing")
    assert page["annotations"] == {
        "summary": SUMMARY,
        "description": "Look.",
        "runbook_url": RUNBOOK,
        "dashboard_url": DASHBOARD,
    }
    assert inbox.posts["/page"][0]["version"] == "4"
    assert [message["status"] for message in inbox.posts["/ticket"]] == ["firing", "resolved"]
    assert "/deadman" not in inbox.posts


@pytest.mark.parametrize(
    ("labels", "title"),
    [
        ([{"alertname": "A", "engine": "e", "severity": "critical"}], "CRITICAL A on e"),
        ([{"alertname": "A"}], "UNRATED A"),
        ([{"alertname": "A", "engine": "e"}, {"alertname": "B", "engine": "e"}], "UNRATED several alerts on e (2)"),
    ],
)
def test_titles_of_odd_groups(labels: list[dict[str, str]], title: str, tmp_path: Path) -> None:
    alerts = [{"status": "firing", "labels": each, "annotations": {}} for each in labels]
    common = dict(set.intersection(*(set(each.items()) for each in labels)))
    data = {"status": "firing", "receiver": "page", "commonLabels": common, "alerts": alerts}
    assert _rendered("title", data, tmp_path) == title
    assert "How bad: " in _rendered("text", data, tmp_path)


def _rendered(name: str, data: dict[str, Any], folder: Path) -> str:
    (folder / "data.json").write_text(json.dumps(data))
    done = subprocess.run(
        [
            *(str(_tool("amtool")), "template", "render", f"--template.glob={render.FOLDER}/templates/*.tmpl"),
            f'--template.text={{{{ template "enginescope.{name}" . }}}}',
            f"--template.data={folder / 'data.json'}",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout.strip()
