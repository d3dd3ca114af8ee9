"""docs/privileges.md says what the sidecar sees with which rights: every row is measured again."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.sidecar_harness import ROOT, SECONDS, Processes, Sidecar, Victim

PAGE = ROOT / "docs" / "privileges.md"
DOCKER_DEFAULT = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service"),
    *("net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"),
)
_USERS = {"user": 20001, "same user": 20001, "other user": 20002}

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"),
]


def _table() -> list[list[str]]:
    """The cells of the first table, header included."""
    lines = PAGE.read_text().split("## The matrix")[1].split("\n\n")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


HEADER, *ROWS = _table()


def prefix(rights: str) -> tuple[str, ...]:
    """``setpriv`` and flags for a cell such as ``root, SYS_PTRACE + DAC_READ_SEARCH``."""
    who, _, what = rights.partition(", ")
    none = ("setpriv", "--inh-caps=-all")
    if who in _USERS:
        assert what == "none"
        user = _USERS[who]
        return (*none, "--bounding-set=-all", "--no-new-privs", f"--reuid={user}", f"--regid={user}", "--clear-groups")
    assert who == "root"
    kept = {"none": (), "default": DOCKER_DEFAULT}.get(what) or re.findall(r"[A-Z_]+", what)
    return (*none, "--bounding-set=-all" + "".join(f",+{capability.lower()}" for capability in kept))


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    directory = Path(f"/tmp/enginescope-rights-{os.getpid()}")
    directory.mkdir(mode=0o700)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} | {row[1]}")
def test_the_sidecar_sees_what_the_page_says(processes: Processes, runtime_dir: Path, row: Sequence[str]) -> None:
    engine, sidecar, *cells = row
    if engine.startswith("user"):
        os.chown(runtime_dir, _USERS["user"], _USERS["user"])
    victim = Victim(processes, prefix(engine))
    port = victim("listen(backlog=7)")
    victim(f"page('{runtime_dir}', 'api', {{'http': '127.0.0.1:{port}'}}, requests_ok=3)")
    written = dict(zip(HEADER[2:], cells, strict=True))
    expected = {fact: float(word == "yes") for fact, word in written.items() if word != "-"}
    watching = Sidecar(processes, f"demo=port:{port}", runtime_dir, prefix(sidecar))
    seen = _settled(watching, expected)
    assert seen == expected
    samples = watching.scrape()
    assert samples[f"listener_accept_queue_limit{{port={port},role=http}}"] == 7
    assert ("requests_total{outcome=ok}" in samples) == (written["pages"] == "yes")


def _settled(watching: Sidecar, expected: dict[str, float]) -> dict[str, float]:
    """The facts once they are as expected and stay so, or as they are after ten seconds."""
    deadline = time.monotonic() + SECONDS
    while (found := _facts(watching)) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.2)  # a fact that comes with the slower collectors
    return _facts(watching) if found == expected else found


def _facts(watching: Sidecar) -> dict[str, float]:
    return {
        re.sub(r".*fact=(\w+)}", r"\1", name): value
        for name, value in watching.scrape().items()
        if name.startswith("sidecar_visible")
    }
