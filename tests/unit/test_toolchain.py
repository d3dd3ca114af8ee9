"""Finding and fetching the tools."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.render import alertmanager_command, render_alertmanager
from enginescope import toolchain
from enginescope.probe import is_ready


@pytest.fixture
def nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Neither PATH nor the local folder has a tool; returns the local folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv(toolchain.FOLDER_VARIABLE, str(tmp_path / "tools"))
    return tmp_path / "tools"


def _program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_missing_tool_is_one_sentence_that_names_what_to_install(nothing_on_path: Path) -> None:
    with pytest.raises(toolchain.ToolMissingError) as caught:
        toolchain.find("amtool")
    assert "amtool" in str(caught.value)
    assert "prometheus-alertmanager" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert toolchain.missing() == list(toolchain.TOOLS)


def test_path_wins_over_the_local_folder(nothing_on_path: Path, tmp_path: Path) -> None:
    local = _program(nothing_on_path / "usr/bin/promtool")
    assert toolchain.find("promtool") == local
    on_path = _program(tmp_path / "empty/promtool")
    assert toolchain.find("promtool") == on_path


def test_debian_names_alertmanager_differently(nothing_on_path: Path) -> None:
    plain = _program(nothing_on_path / "alertmanager")
    assert toolchain.find("alertmanager") == plain
    debian = _program(nothing_on_path / "usr/bin/prometheus-alertmanager")
    assert toolchain.find("alertmanager") == debian


def test_nothing_is_fetched_when_nothing_is_missing(nothing_on_path: Path) -> None:
    for names in toolchain.TOOLS.values():
        _program(nothing_on_path / names[0])
    toolchain.install()


def test_without_apt_the_sentence_names_another_way(nothing_on_path: Path) -> None:
    with pytest.raises(toolchain.ToolMissingError, match="without apt-get: install Prometheus"):
        toolchain.install()


def test_a_failing_apt_is_a_sentence(nothing_on_path: Path, tmp_path: Path) -> None:
    for name in ("apt-get", "apt-cache", "dpkg"):
        _program(tmp_path / "empty" / name, "#!/bin/sh\necho 'E: Unable to locate package prometheus' >&2\nexit 100\n")
    with pytest.raises(toolchain.ToolMissingError, match="Unable to locate package prometheus"):
        toolchain.install()


def test_the_command_prints_the_sentence_and_succeeds(nothing_on_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enginescope.toolchain"], capture_output=True, text=True, check=True, timeout=30
    )
    assert "without apt-get" in done.stdout
    assert done.stdout.splitlines()[1:] == [f"{tool}: missing" for tool in toolchain.TOOLS]


def test_it_installs_the_real_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools from Debian, in a folder of their own, able to run."""
    monkeypatch.setenv(toolchain.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(toolchain, "missing", lambda: [t for t in toolchain.TOOLS if not _in(tmp_path, t)])
    try:
        toolchain.install(timeout=120)
    except toolchain.ToolMissingError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    for names in toolchain.TOOLS.values():
        tool = tmp_path / "usr/bin" / names[0]
        subprocess.run([tool, "--version"], check=True, capture_output=True, timeout=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["usr"]
    _start_alertmanager(tmp_path / "usr/bin/prometheus-alertmanager", tmp_path)


def _start_alertmanager(binary: Path, folder: Path) -> None:
    """Debian's build looks for templates in /usr/share, which our copy must not need."""
    (folder / "config.yaml").write_text(render_alertmanager(page_receiver="127.0.0.1:1"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = alertmanager_command(binary, folder / "config.yaml", folder / "data", f"127.0.0.1:{port}")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        while process.poll() is None and not is_ready(port, "/-/ready"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running = process.poll() is None
    finally:
        process.terminate()
        said = process.communicate(timeout=10)[1]
    assert running, said


def _in(folder: Path, tool: str) -> bool:
    return (folder / "usr/bin" / toolchain.TOOLS[tool][0]).exists()
