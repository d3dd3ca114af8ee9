"""Every panel of every dashboard on a running stack under load."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboards.build import dashboards
from dashboards.model import Kind
from tests.e2e.test_up import PAGING, stack

pytestmark = [pytest.mark.long, pytest.mark.skipif(not PAGING, reason="needs Prometheus (make install)")]
CHECK = (sys.executable, "-m", "enginescope", "dashboards", "--check")


@contextmanager
def answers_that_last(engine_port: int) -> Iterator[None]:
    """Enough of them that one scrape a second sees some, on a machine of any speed."""
    url = f"http://127.0.0.1:{engine_port}"
    command = (*CHECK[:3], "load", "--url", url, "--rate", "3", "--max-tokens", "500")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_every_panel_shows_a_stack_under_load(runtime_dir: Path) -> None:
    with stack(runtime_dir) as (_, running), answers_that_last(running.ports["engine"]):
        address = f"http://127.0.0.1:{running.ports['prometheus']}"
        command = [*CHECK, "--prometheus", address, "--wait", "90"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert (done.returncode, found["faults"]) == (0, []), done.stdout
        shown = [panel for board in dashboards() for panel in board.panels if panel.kind is not Kind.TEXT]
        assert found["panels"] == len(shown)
        assert found["moves"] > len(shown) / 3
        assert found["exemplars_followed"] > 0
        assert found["not_here"] >= 2  # Jaeger's panels at least

        pages_are_drawn(address, runtime_dir / "previews")

        wrong = [*CHECK, "--prometheus", address, "--engine", "another", "--wait", "0"]
        done = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "does not scrape engine 'another', only demo" in done.stderr


def pages_are_drawn(prometheus: str, folder: Path) -> None:
    command = [*CHECK[:-1], "--prometheus", prometheus, "--preview", str(folder), "--last", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == (0 if shutil.which("chromium") else 2), done.stderr
    for board in dashboards()[: None if done.returncode == 0 else 1]:
        page = (folder / f"{board.uid}.html").read_text()
        assert "Preview, not Grafana" in page
        assert page.count("<section") == len([panel for panel in board.panels if panel.kind is not Kind.TEXT])
        assert "no data" not in page
        if done.returncode == 0:
            assert (folder / f"{board.uid}.png").read_bytes().startswith(b"\x89PNG")
