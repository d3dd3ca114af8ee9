"""compose.yaml and what it mounts, read as files: what holds for every service, also for those no test can start.

Grafana, Jaeger, vLLM and the DCGM exporter are only to be had from image registries. Their parts are held against the
keys that their documentation names; the rest runs in tests/compose.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import build
from deploy.requirements import requirements
from enginescope import toolchain

ROOT = Path(__file__).parents[2]
ENV = dict(re.findall(r"(?m)^([A-Z_]+)=(.*)$", (ROOT / ".env").read_text()))
COMPOSE: dict[str, Any] = yaml.safe_load(
    re.sub(r"\$\{([A-Z_]+)\}", lambda match: ENV[match[1]], (ROOT / "compose.yaml").read_text())
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PODS = {"engine": "pod", "sidecar": "pod", "vllm": "vllm-pod", "vllm-sidecar": "vllm-pod"}
WRITABLE = {"/run/enginescope", "/prometheus", "/alertmanager", "/var/lib/grafana", "/models"}

each_service = pytest.mark.parametrize("name", SERVICES)


@each_service
def test_a_service_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "container_name", "ipc", "uts"} & service.keys()
    user, _, group = service["user"].partition(":")
    assert int(user) > 0
    assert int(group) > 0


@each_service
def test_a_service_is_bounded(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert float(service["cpus"]) > 0
    assert 0 < service["pids_limit"] <= 4096
    assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
    assert service["restart"] == "unless-stopped"
    for mount in service.get("tmpfs", []):
        assert "size=" in mount


@each_service
def test_a_service_says_whether_it_is_healthy(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout"} <= check.keys()


@each_service
def test_an_image_is_pinned_by_a_variable(name: str) -> None:
    image = SERVICES[name]["image"]
    assert image in ENV.values()
    assert re.search(r":v?\d+\.\d+", image), f"{image} has no version"


@each_service
def test_nobody_outside_reaches_a_port(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


@each_service
def test_what_comes_from_the_host_is_read_only_and_there(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target, *mode = volume.split(":")
        if source.startswith("./") and target not in WRITABLE:
            assert mode == ["ro"]
            assert (ROOT / source).is_dir(), source
        else:
            assert target in WRITABLE


@each_service
def test_dependencies_wait_for_health(name: str) -> None:
    for needed, condition in SERVICES[name].get("depends_on", {}).items():
        assert condition["condition"] == "service_healthy"
        assert "healthcheck" in SERVICES[needed]
        assert condition.get("restart", False) == (PODS.get(name) == needed)


@pytest.mark.parametrize(("name", "pod"), PODS.items())
def test_engines_and_sidecars_live_in_the_namespaces_of_a_pod(name: str, pod: str) -> None:
    service = SERVICES[name]
    assert service["network_mode"] == service["pid"] == f"service:{pod}"
    # Docker refuses these beside a network that is somebody else's.
    assert not {"ports", "networks", "sysctls", "hostname"} & service.keys()


@pytest.mark.parametrize(("sidecar", "engine"), [("sidecar", "engine"), ("vllm-sidecar", "vllm")])
def test_a_sidecar_is_of_the_engines_user_and_does_not_wait_for_it(sidecar: str, engine: str) -> None:
    assert SERVICES[sidecar]["user"] == SERVICES[engine]["user"]
    assert engine not in SERVICES[sidecar]["depends_on"]


def test_engine_and_sidecar_share_one_bounded_piece_of_memory() -> None:
    (volume,) = SERVICES["engine"]["volumes"]
    assert SERVICES["sidecar"]["volumes"] == [volume]
    name, path = volume.split(":")
    options = COMPOSE["volumes"][name]["driver_opts"]
    assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
    user = SERVICES["engine"]["user"].split(":")[0]
    assert {"size=64m", "mode=0700", f"uid={user}", "nosuid", "nodev"} <= set(options["o"].split(","))
    for service in ("engine", "sidecar"):
        assert SERVICES[service]["environment"]["ENGINESCOPE_RUNTIME_DIR"] == path


def test_profiles() -> None:
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert profiles["load"] == ["load"]
    assert profiles["dcgm-exporter"] == ["gpu"]
    assert {name for name, found in profiles.items() if found == ["vllm"]} == {"vllm-pod", "vllm", "vllm-sidecar"}
    assert len([name for name, found in profiles.items() if found is None]) == 8


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("sidecar", ["sidecar"]),
        ("vllm-sidecar", ["sidecar"]),
        ("engine", ["instrumented_engine"]),
        ("page-receiver", ["enginescope.page_receiver"]),
        ("load", ["enginescope", "load"]),
    ],
)
def test_our_own_programs_have_the_flags_that_are_used(name: str, module: list[str]) -> None:
    program, *rest = module
    shown = subprocess.run(
        [sys.executable, "-m", program, *rest, "--help"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    used = [flag.split("=")[0] for flag in SERVICES[name]["command"] if flag.startswith("--")]
    assert used
    for flag in used:
        assert re.search(rf"{flag}\b", shown), flag


def test_environment_variables_that_are_shared_have_no_unknown_name() -> None:
    ours = {key for service in SERVICES.values() for key in service.get("environment", {}) if key.startswith("ENGINE")}
    assert ours == {"ENGINESCOPE_RUNTIME_DIR"}


def test_every_variable_is_used_and_no_secret_is_in_the_file() -> None:
    text = (ROOT / "compose.yaml").read_text()
    unused = {name for name in ENV if f"${{{name}}}" not in text} - {"COMPOSE_PROJECT_NAME"}
    assert not unused
    assert not {name for name in ENV if "PASSWORD" in name and not name.endswith("_FILE")}
    grafana = SERVICES["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_admin_password"
    assert grafana["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    ignored = (ROOT / ".gitignore").read_text().split()
    assert ENV["GRAFANA_ADMIN_PASSWORD_FILE"].removeprefix("./") in ignored


@pytest.mark.parametrize("dockerfile", ["engine.Dockerfile", "sidecar.Dockerfile"])
def test_a_dockerfile_is_in_stages_unprivileged_and_on_the_same_python(dockerfile: str) -> None:
    text = (ROOT / "deploy" / dockerfile).read_text()
    assert text.count("\nFROM ") == 2
    assert re.findall(r"(?m)^USER (.*)$", text) == ["10001:10001"]
    assert re.findall(r"(?m)^ARG PYTHON_IMAGE=(.*)$", text) == [ENV["PYTHON_IMAGE"]]


def test_only_the_engine_has_torch() -> None:
    pyproject = ROOT / "pyproject.toml"
    assert not [name for name in requirements(pyproject, []) if re.match("torch|fastapi|uvicorn|pyzmq", name)]
    assert [name for name in requirements(pyproject, ["engine"]) if name.startswith("torch")]
    with pytest.raises(KeyError, match="nothing"):
        requirements(pyproject, ["nothing"])


def test_the_build_context_holds_the_packages_and_nothing_private() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= kept
    assert not {".", ".env", ".git", "grafana_admin_password"} & kept


# --- the mounted configurations


@pytest.mark.parametrize("path", build.FILES, ids=lambda path: path.name)
def test_a_built_configuration_is_current_and_leaves_the_container(path: Path) -> None:
    text = path.read_text()
    assert text == build.FILES[path]()
    outside = set(re.findall(r"127\.0\.0\.1:\d+", text))
    assert outside <= {"127.0.0.1:9090"}  # Prometheus itself
    ports = {"page-receiver:9095", "alertmanager:9093", "sidecar:9177"}
    assert ports & set(re.findall(r"[a-z-]+:\d{4}", text))


def test_the_tools_accept_the_built_configurations() -> None:
    prometheus, alertmanager = build.FILES
    commands = {
        "promtool": ("check", "config", "--syntax-only", str(prometheus)),
        "amtool": ("check-config", str(alertmanager)),
    }
    for tool, arguments in commands.items():
        try:
            program = toolchain.find(tool)
        except toolchain.ToolMissingError as error:
            pytest.skip(f"CONFIGURATIONS ARE NOT CHECKED: {error}")
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_alertmanager_reads_is_mounted() -> None:
    config = yaml.safe_load((build.BUILT / "alertmanager" / "alertmanager.yaml").read_text())
    mounts = dict(volume.split(":")[1::-1] for volume in SERVICES["alertmanager"]["volumes"])
    assert config["templates"]
    for pattern in config["templates"]:
        assert list((ROOT / mounts[str(Path(pattern).parent)]).glob(Path(pattern).name))


def test_the_targets_of_prometheus_are_services() -> None:
    config = yaml.safe_load((build.BUILT / "prometheus" / "prometheus.yaml").read_text())
    named = {alias for service in SERVICES.values() for alias in _names(service)} | SERVICES.keys()
    for job in config["scrape_configs"]:
        static = [target for entry in job.get("static_configs", []) for target in entry["targets"]]
        found = [name for entry in job.get("dns_sd_configs", []) for name in entry["names"]]
        for host in {target.split(":")[0] for target in static} | set(found):
            assert host in named | {"127.0.0.1"}
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert {str(Path(rules).parent) for rules in config["rule_files"]} <= mounted


def _names(service: dict[str, Any]) -> list[str]:
    aliases: list[str] = service.get("networks", {}).get("default", {}).get("aliases", [])
    return aliases


DATASOURCE_KEYS = {
    *("name", "type", "uid", "access", "orgId", "url", "user", "database", "basicAuth", "basicAuthUser"),
    *("withCredentials", "isDefault", "jsonData", "secureJsonData", "version", "editable", "readOnly"),
}
JSON_DATA_KEYS = {
    "prometheus": {
        *("httpMethod", "prometheusType", "prometheusVersion", "cacheLevel", "incrementalQuerying", "timeInterval"),
        *(
            "queryTimeout",
            "disableMetricsLookup",
            "customQueryParameters",
            "manageAlerts",
            "exemplarTraceIdDestinations",
        ),
    },
    "jaeger": {"tracesToLogsV2", "tracesToMetrics", "nodeGraph", "traceQuery", "spanBar", "traceIdTimeParams"},
    "alertmanager": {"implementation", "handleGrafanaManagedAlerts"},
}
PROVIDER_KEYS = {
    *("name", "orgId", "folder", "folderUid", "type", "disableDeletion", "updateIntervalSeconds", "allowUiUpdates"),
    "options",
}


def _provisioned(kind: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy/grafana" / kind / "enginescope.yaml").read_text())
    assert loaded["apiVersion"] == 1
    return loaded


def test_data_sources_have_the_documented_keys_and_fixed_uids() -> None:
    found = _provisioned("datasources")
    assert found.keys() <= {"apiVersion", "prune", "deleteDatasources", "datasources"}
    sources = {source["uid"]: source for source in found["datasources"]}
    assert sources.keys() == {"prometheus", "jaeger", "alertmanager"}
    assert [source["uid"] for source in sources.values() if source.get("isDefault")] == ["prometheus"]
    for source in sources.values():
        assert source.keys() <= DATASOURCE_KEYS
        assert source["jsonData"].keys() <= JSON_DATA_KEYS[source["type"]]
        assert source["access"] == "proxy"
        assert source["url"].split("/")[2].split(":")[0] in SERVICES


def test_exemplars_lead_to_jaeger_by_the_label_that_the_sidecar_writes() -> None:
    (prometheus,) = (item for item in _provisioned("datasources")["datasources"] if item["uid"] == "prometheus")
    (destination,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert destination.keys() <= {"name", "datasourceUid", "url", "urlDisplayLabel"}
    assert (destination["name"], destination["datasourceUid"]) == ("trace_id", "jaeger")
    assert '"trace_id"' in (ROOT / "sidecar/metrics.py").read_text()
    interval = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())["global"]["scrape_interval"]
    assert prometheus["jsonData"]["timeInterval"] == interval
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]


def test_dashboards_are_read_from_where_they_are_mounted() -> None:
    found = _provisioned("dashboards")
    assert found.keys() == {"apiVersion", "providers"}
    (provider,) = found["providers"]
    assert provider.keys() <= PROVIDER_KEYS
    assert provider["type"] == "file"
    assert provider["options"].keys() <= {"path", "foldersFromFilesStructure"}
    mounts = dict(volume.split(":")[1::-1] for volume in SERVICES["grafana"]["volumes"])
    assert mounts[provider["options"]["path"]] == "./dashboards/built"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(home).parent) == provider["options"]["path"]
    assert (ROOT / "dashboards/built" / Path(home).name).is_file()


def test_the_dashboards_ask_for_data_sources_that_are_provisioned() -> None:
    provisioned = {source["type"] for source in _provisioned("datasources")["datasources"]}
    wanted = {
        variable["query"]
        for path in (ROOT / "dashboards/built").glob("*.json")
        for variable in json.loads(path.read_text())["templating"]["list"]
        if variable["type"] == "datasource"
    }
    assert {"prometheus", "jaeger"} <= wanted <= provisioned


def test_jaeger_receives_where_the_engine_sends_and_answers_where_grafana_asks() -> None:
    config = yaml.safe_load((ROOT / "deploy/compose/jaeger/jaeger.yaml").read_text())
    assert config.keys() == {"service", "extensions", "receivers", "processors", "exporters"}
    assert set(config["service"]["extensions"]) == config["extensions"].keys()
    (pipeline,) = config["service"]["pipelines"].values()
    for part in ("receivers", "processors", "exporters"):
        assert set(pipeline[part]) == config[part].keys()
    storage = config["extensions"]["jaeger_storage"]["backends"].keys()
    assert {config["extensions"]["jaeger_query"]["storage"]["traces"]} == storage
    assert {config["exporters"]["jaeger_storage_exporter"]["trace_storage"]} == storage
    endpoint = SERVICES["engine"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    received = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert endpoint.rpartition(":")[2] == received.rpartition(":")[2]
    (url,) = (item["url"] for item in _provisioned("datasources")["datasources"] if item["uid"] == "jaeger")
    assert url.rpartition(":")[2] == config["extensions"]["jaeger_query"]["http"]["endpoint"].rpartition(":")[2]
    health = config["extensions"]["healthcheckv2"]["http"]["endpoint"]
    assert f"http://{health}/status" in SERVICES["jaeger"]["healthcheck"]["test"]
