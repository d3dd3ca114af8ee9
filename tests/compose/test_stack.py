"""compose.yaml in a real Docker: hardened as written, a request traced, the engine killed, the page there.

The images are built here from the same Dockerfiles, on this distribution instead of the official Python, with Debian's
Prometheus and Alertmanager. Grafana and Jaeger are not to be had without a registry; tests/unit/test_compose.py reads
their parts.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from telemetry.stages import STAGES
from tests.compose import tools
from tests.compose.conftest import IMAGES, STARTED
from tests.compose.daemon import Docker

pytestmark = pytest.mark.docker
T = TypeVar("T")


def eventually(what: str, probe: Callable[[], T | None], seconds: float) -> T:
    """The first true result; a container that does not answer yet is no result."""
    deadline = time.monotonic() + seconds
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if result := probe():
                return result
        except (ConnectionError, tools.MissingError) as error:
            problem = error
        time.sleep(0.5)
    pytest.fail(f"not within {seconds} s: {what} ({problem})")


def metrics(stack: Docker) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Series of the sidecar: name -> labels and value."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(stack.ask(9177, "/metrics").decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def complete(stack: Docker, *headers: str) -> dict[str, Any]:
    body = json.dumps({"prompt": "The sea is", "max_tokens": 4, "temperature": 0})
    answer: dict[str, Any] = json.loads(
        stack.ask(8000, "/v1/completions", body, "Content-Type: application/json", *headers)
    )
    return answer


def test_every_service_is_hardened_as_written(stack: Docker) -> None:
    written = yaml.safe_load(stack.compose("config"))["services"]
    for service in STARTED:
        found = stack.inspect(service)
        host, config = found["HostConfig"], found["Config"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert not host["Privileged"]
        assert config["User"] == written[service]["user"] != "0:0"
        assert host["Memory"] == int(written[service]["mem_limit"])
        assert host["NanoCpus"] == float(written[service]["cpus"]) * 1e9
        assert host["PidsLimit"] == written[service]["pids_limit"]
        assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        assert found["State"]["Health"]["Status"] == "healthy"
        assert not [mount for mount in found["Mounts"] if mount["Type"] == "bind" and mount["RW"]]
        bindings = [binding for ports in (host["PortBindings"] or {}).values() for binding in ports]
        assert {binding["HostIp"] for binding in bindings} <= {"127.0.0.1"}


@pytest.mark.parametrize("service", STARTED)
def test_the_kernel_says_the_same(stack: Docker, service: str) -> None:
    # What is started in a container gets what its program got.
    status = stack.inside(service, "cat", "/proc/self/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    assert "0" not in facts["Uid"].split()
    with pytest.raises(tools.MissingError, match="Read-only file system"):
        stack.inside(service, "touch", "/etc/written")


def test_engine_and_sidecar_live_in_the_namespaces_of_the_pod(stack: Docker) -> None:
    pod = stack.inspect("pod")["Id"]
    for service in ("engine", "sidecar"):
        host = stack.inspect(service)["HostConfig"]
        assert host["NetworkMode"] == host["PidMode"] == f"container:{pod}"
    runtime = {
        service: stack.inside(service, "stat", "-f", "-c", "%T", "/run/enginescope")
        for service in ("engine", "sidecar")
    }
    assert set(runtime.values()) == {"tmpfs\n"}


def test_the_sidecar_needs_no_privilege_to_see_everything(stack: Docker) -> None:
    seen = eventually("the sidecar sees the engine", lambda: metrics(stack).get("enginescope_listener_up"), 60)
    assert ({"port": "8000", "role": "http"}, 1.0) in seen
    visible = metrics(stack)["enginescope_sidecar_visible"]
    assert {labels["fact"]: value for labels, value in visible if not value} == {}


def test_the_images_hold_what_they_need(stack: Docker) -> None:
    packages = "import importlib.util as u; print([m for m in ('torch', 'fastapi', 'pip', 'gguf') if u.find_spec(m)])"
    assert stack.inside("sidecar", "python", "-c", packages) == "[]\n"
    size = {name: int(stack.run("image", "inspect", "--format", "{{.Size}}", IMAGES[name])) for name in IMAGES}
    assert size["SIDECAR_IMAGE"] - size["PYTHON_IMAGE"] < 200e6
    print(
        {
            name: f"{(size[name] - size['PYTHON_IMAGE']) / 1e6:.0f} MB above its base"
            for name in ("ENGINE_IMAGE", "SIDECAR_IMAGE")
        }
    )


def test_a_request_is_traced_to_where_jaeger_would_be(stack: Docker) -> None:
    trace_id = secrets.token_hex(16)
    assert complete(stack, f"traceparent: 00-{trace_id}-{secrets.token_hex(8)}-01")["choices"][0]["text"]

    def complete_trace() -> list[dict[str, Any]] | None:
        found = trace(stack, trace_id)
        return found if len(found) > len(STAGES) else None

    found = eventually("all spans of the request", complete_trace, 60)
    assert {span["name"] for span in found} == {"POST /v1/completions", *(stage.span_name for stage in STAGES)}


def trace(stack: Docker, trace_id: str) -> list[dict[str, Any]]:
    """The spans of a trace, asked for from where Grafana would ask."""
    script = f"import urllib.request as u; print(u.urlopen('http://jaeger:4318/api/traces/{trace_id}').read().decode())"
    spans: list[dict[str, Any]] = json.loads(stack.inside("page-receiver", "python", "-c", script))
    return spans


def query(stack: Docker, expression: str) -> list[dict[str, Any]]:
    answer = json.loads(stack.ask(9090, f"/api/v1/query?query={quote(expression)}"))
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def test_prometheus_scrapes_all_three_and_has_the_rules(stack: Docker) -> None:
    expected = {("enginescope", "demo"), ("prometheus", None), ("alertmanager", None)}

    def scraped() -> bool:
        targets = query(stack, "up == 1")
        return {(target["metric"]["job"], target["metric"].get("engine")) for target in targets} == expected

    eventually("every target is up, and there is no other", scraped, 90)
    rules = json.loads(stack.ask(9090, "/api/v1/rules"))["data"]["groups"]
    assert {"engine_down", "tcp_backlog_full"} <= {group["name"] for group in rules}
    assert not [rule for group in rules for rule in group["rules"] if rule["health"] == "err"]


def test_the_load_generator_of_its_profile_sends(stack: Docker) -> None:
    before = _requests(stack)
    stack.compose("up", "--detach", "--no-build", "--no-deps", "load")
    eventually("five requests more", lambda: _requests(stack) >= before + 5, 120)
    stack.compose("stop", "--timeout", "2", "load")


def test_an_exemplar_in_prometheus_names_a_trace_that_is_there(stack: Docker) -> None:
    def exemplar() -> dict[str, Any] | None:
        window = f"start={time.time() - 600:.0f}&end={time.time() + 60:.0f}"
        path = f"/api/v1/query_exemplars?query=enginescope_stage_duration_seconds_bucket&{window}"
        series = json.loads(stack.ask(9090, path))["data"]
        return next((found for entry in series for found in entry["exemplars"]), None)

    # The label by which Grafana's data source finds Jaeger's trace.
    trace_id = eventually("an exemplar", exemplar, 90)["labels"]["trace_id"]
    assert len(trace(stack, trace_id)) > len(STAGES)


_KILL_THE_LAUNCHER = """\
import os, pathlib
for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"-m\\0instrumented_engine\\0" in line.read_bytes():
        os.kill(int(line.parent.name), 9)
"""


def _requests(stack: Docker) -> float:
    return sum(value for labels, value in metrics(stack)["enginescope_requests_total"] if labels["outcome"] == "ok")


def _up(stack: Docker) -> float:
    return metrics(stack)["enginescope_engine_up"][0][1]


def test_a_crashed_engine_is_started_again_under_the_same_sidecar(stack: Docker) -> None:
    sidecar, engine = stack.inspect("sidecar"), stack.inspect("engine")
    # From the sidecar, which shares its pid namespace and its user.
    stack.inside("sidecar", "python", "-c", _KILL_THE_LAUNCHER)
    eventually("Docker starts it again", lambda: stack.inspect("engine")["RestartCount"] > engine["RestartCount"], 60)
    eventually("the new engine answers", lambda: complete(stack)["choices"], 180)
    eventually("the sidecar sees the new one", lambda: _up(stack) == 1, 30)
    assert stack.inspect("sidecar")["State"]["StartedAt"] == sidecar["State"]["StartedAt"]


def test_a_killed_engine_is_paged_and_the_sidecar_lives_on(stack: Docker) -> None:
    sidecar = stack.inspect("sidecar")
    # Docker does not restart what somebody killed on purpose.
    stack.compose("kill", "--signal", "SIGKILL", "engine")
    killed = time.monotonic()
    eventually("the sidecar says that the engine is gone", lambda: _up(stack) == 0, 30)

    def page() -> dict[str, Any] | None:
        pages = json.loads(stack.ask(9095, "/pages"))
        down = (page for page in pages if page["labels"]["alertname"] == "EngineDown" and page["status"] == "firing")
        return next(down, None)

    found = eventually("the page", page, 300)
    print(f"paged {time.monotonic() - killed:.0f} s after the kill: {found['annotations']['summary']}")
    assert found["labels"]["engine"] == "demo"
    stack.compose("up", "--detach", "--no-build", "--no-deps", "--wait", "--wait-timeout", "240", "engine")
    eventually("the sidecar sees the new engine", lambda: _up(stack) == 1, 60)
    assert complete(stack)["choices"]
    now = stack.inspect("sidecar")
    assert now["State"]["StartedAt"] == sidecar["State"]["StartedAt"]
    assert now["RestartCount"] == 0


def test_a_restart_of_the_pod_takes_both_along(stack: Docker) -> None:
    stack.compose("restart", "--timeout", "3", "pod")
    eventually("the engine answers in the new namespaces", lambda: complete(stack)["choices"], 240)
    eventually("the sidecar sees it there", lambda: _up(stack) == 1, 60)


def test_compose_refuses_to_start_grafana_without_a_password(stack: Docker) -> None:
    missing = {"GRAFANA_ADMIN_PASSWORD_FILE": "./no_such_file"}
    command = ["docker", "compose", "--project-name", "enginescope-test-2", "--file", "compose.yaml", "create"]
    done = subprocess.run(
        [*command, "--no-build", "--pull=never", "grafana"],
        env=tools.environment() | stack.variables | {"GRAFANA_IMAGE": IMAGES["SIDECAR_IMAGE"]} | missing,
        cwd=tools.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert done.returncode
        assert "no_such_file" in done.stderr
    finally:
        stack.run("compose", "--project-name", "enginescope-test-2", "--file", "compose.yaml", "down", "--volumes")
