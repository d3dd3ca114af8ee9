"""docs/attach.md: what is promised for any program that listens is there, and what is said to need pages is not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sidecar_harness import ROOT, Processes, Samples, Sidecar
from tests.unit.test_deploy_snippets import SCENARIOS, SYSCTLS, sysctls

PAGE = (ROOT / "docs/attach.md").read_text()
_SERVE = """\
import http.server, json
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def _named(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0].split("\nThe judge speaks")[0]
    return {name.removeprefix("enginescope_") for name in re.findall(r"`(enginescope_\w+)`", section)}


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Samples]:
    """What a sidecar shows of a server that knows nothing of it."""
    processes = Processes()
    try:
        server = processes.start("-c", _SERVE)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        sidecar = Sidecar(processes, f"web=port:{port}", tmp_path / "no-pages")
        promised = _named("What you see without pages")
        yield sidecar.wait(lambda samples: promised <= {name.partition("{")[0] for name in samples})
    finally:
        processes.end()


def test_the_page_is_true_of_a_server_without_pages(seen: Samples) -> None:
    names = {name.partition("{")[0] for name in seen}
    assert len(_named("What you see without pages")) > 15
    inside = _named("What you do not see")
    assert len(inside) >= 5
    assert not {name for name in names for hidden in inside if re.fullmatch(rf"{hidden}(_bucket|_sum|_count)?", name)}


_IN_A_NAMESPACE = """\
import pathlib, socket, subprocess, sys
file, backlog = sys.argv[1:]
subprocess.run(["sysctl", "--quiet", "--load", file], check=True)
for line in pathlib.Path(file).read_text().splitlines():
    if line and line[0] != "#":
        name, value = line.split(" = ")
        found = pathlib.Path("/proc/sys", name.replace(".", "/")).read_text().split()
        assert found == value.split(), (name, found, value)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listener = socket.create_server(("127.0.0.1", 8000), backlog=int(backlog))
row = subprocess.check_output(["ss", "--listening", "--tcp", "--numeric", "--no-header"], text=True).split()
assert row[2] == backlog, row
"""


@pytest.mark.root
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_kernel_takes_the_sysctls_and_the_listener_gets_its_backlog(scenario: str) -> None:
    needed = [program for program in ("unshare", "sysctl", "ip", "ss") if not shutil.which(program)]
    if needed:
        pytest.skip(f"needs {', '.join(needed)}")
    file = SYSCTLS / f"60-enginescope-{scenario}.conf"
    (backlog,) = re.findall(r"--backlog (\d+)", file.read_text())
    assert sysctls(scenario)
    command = ["unshare", "--net", sys.executable, "-c", _IN_A_NAMESPACE, str(file), backlog]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
        pytest.skip("needs root to make a network namespace")
    assert done.returncode == 0, done.stderr
