"""The stack of compose.yaml, on images that are built here, in a Docker that is there or is started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.compose import tools
from tests.compose.daemon import Docker, NoDaemonError, docker

STARTED = ("pod", "engine", "sidecar", "prometheus", "alertmanager", "page-receiver", "jaeger")
IMAGES = {
    "ENGINE_IMAGE": "enginescope/engine:test",
    "SIDECAR_IMAGE": "enginescope/sidecar:test",
    "JAEGER_IMAGE": "enginescope/sidecar:test",
    "PROMETHEUS_IMAGE": "enginescope-test/prometheus:debian",
    "ALERTMANAGER_IMAGE": "enginescope-test/alertmanager:debian",
    "PYTHON_IMAGE": "enginescope-test/debian:1",
}


@pytest.fixture(scope="session")
def stack() -> Iterator[Docker]:
    """The stack, up and healthy."""
    with contextlib.ExitStack() as ending:
        try:
            tools.fetch_docker()
            running = ending.enter_context(docker())
            _fetch(running)
        except NoDaemonError as error:
            pytest.skip(f"COMPOSE IS NOT TESTED: {error}")
        except tools.MissingError as error:
            if os.environ.get("CI"):
                pytest.fail(f"compose is not tested: {error}")
            pytest.skip(f"COMPOSE IS NOT TESTED: {error}")
        _build(running)
        try:
            running.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "420", *STARTED)
            yield running
        finally:
            print(running.compose("logs", "--no-color", "--tail", "100"))
            running.compose("down", "--volumes", "--timeout", "5")


def _fetch(running: Docker) -> None:
    """What images are made of: this distribution and the wheels for its Python."""
    running.variables |= IMAGES
    base = IMAGES["PYTHON_IMAGE"]
    if not running.run("images", "--quiet", base).strip():
        running.run("import", tools.root_fs(), base)
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        python = running.run("run", "--rm", base, "python3", "-c", version).strip()
    except tools.MissingError as error:
        raise NoDaemonError(f"the daemon runs and cannot start a container on this kernel: {error}") from error
    tools.fetch_wheels(python)


def _build(running: Docker) -> None:
    base = f"BASE={IMAGES['PYTHON_IMAGE']}"
    folder = "tests/compose"
    for name in ("prometheus", "alertmanager"):
        into = ("--target", name, "--tag", IMAGES[f"{name.upper()}_IMAGE"])
        running.run("build", "--build-arg", base, *into, "--file", f"{folder}/debian.Dockerfile", folder)
    running.compose("build", "pod", "engine")
