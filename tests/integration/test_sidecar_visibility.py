"""What the sidecar sees, and says that it does not see, with fewer rights and in other namespaces: for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.sidecar_harness import ROOT, Processes, Samples, Sidecar, Victim

NOBODY = "65534"
AS_NOBODY = (
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
)
ROOT_WITHOUT_CAPABILITIES = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
NEW_NETWORK = ("unshare", "--net")
NEW_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def works(prefix: Sequence[str]) -> bool:
    """Whether this machine lets us run the project's Python like this."""
    if shutil.which(prefix[0]) is None:
        return False
    tried = subprocess.run(
        [*prefix, sys.executable, "-c", "import sidecar"], cwd=ROOT, capture_output=True, check=False
    )
    return tried.returncode == 0


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to start processes with fewer rights"),
]


def needs(prefix: Sequence[str]) -> None:
    if not works(prefix):
        pytest.skip(f"{' '.join(prefix)} does not work here")


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of nobody's, below one that nobody may enter by name."""
    directory = Path("/tmp") / f"enginescope-test-{os.getpid()}"
    directory.mkdir(mode=0o750)
    os.chown(directory, int(NOBODY), int(NOBODY))
    yield directory
    shutil.rmtree(directory)


def start(processes: Processes, runtime_dir: Path, prefix: Sequence[str]) -> tuple[int, Sidecar, Victim]:
    """A nobody's engine with a page, and a sidecar with the given rights."""
    victim = Victim(processes, AS_NOBODY)
    port = victim("listen(backlog=7)")
    victim(f"page('{runtime_dir}', 'api', {{'http': '127.0.0.1:{port}'}}, requests_ok=3)")
    return port, Sidecar(processes, f"demo=port:{port}", runtime_dir, prefix), victim


def failed(seen: Samples) -> list[str]:
    return [name for name, value in seen.items() if name.startswith("sidecar_collector_success") and not value]


def test_the_same_user_needs_no_capability(processes: Processes, runtime_dir: Path) -> None:
    needs(AS_NOBODY)
    port, sidecar, _ = start(processes, runtime_dir, AS_NOBODY)
    seen = sidecar.wait(lambda seen: seen["process_up{process=api}"] == 1)
    visible = {name: value for name, value in seen.items() if name.startswith("sidecar_visible")}
    assert set(visible.values()) == {1}
    assert {"sidecar_visible{fact=listener_owners}", "sidecar_visible{fact=network_namespace}"} <= set(visible)
    assert seen[f"listener_accept_queue_limit{{port={port},role=http}}"] == 7
    assert seen[f"listener_drops_total{{port={port},role=http}}"] == 0
    assert seen["process_open_fds{process=api}"] > 3
    assert seen["requests_total{outcome=ok}"] == 3
    assert (runtime_dir / f"sidecar-{sidecar.process.pid}.page").exists()
    assert failed(seen) == []


def test_root_without_capabilities_tells_what_is_hidden(processes: Processes, runtime_dir: Path) -> None:
    needs(ROOT_WITHOUT_CAPABILITIES)
    needs(AS_NOBODY)
    port, sidecar, _ = start(processes, runtime_dir, ROOT_WITHOUT_CAPABILITIES)
    seen = sidecar.wait(lambda seen: seen["engine_up"] == 1 and "sidecar_visible{fact=pages}" in seen)
    assert seen["sidecar_visible{fact=listener_owners}"] == 0
    assert seen["sidecar_visible{fact=pages}"] == 0
    assert seen[f"listener_accept_queue_limit{{port={port},role=http}}"] == 7
    assert seen["netns_listen_overflows_total"] >= 0
    assert not [name for name in seen if name.startswith(("process_open_fds", "requests_", "process_up"))]
    assert failed(seen) == []
    log = sidecar.stop()
    assert log.count("cannot see which process owns the listeners: run the sidecar in") == 1
    assert log.count("cannot list the runtime directory") == 1


def test_a_shared_network_namespace_without_its_pids(processes: Processes, tmp_path: Path) -> None:
    needs(NEW_PIDS)
    victim = Victim(processes)
    port = victim("listen(backlog=7)")
    victim(f"page('{tmp_path}', 'api', {{'http': '127.0.0.1:{port}'}}, requests_ok=3)")
    victim(f"connect({port}, 4)")
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path, NEW_PIDS)
    labels = f"{{port={port},role=http}}"
    seen = sidecar.wait(lambda seen: seen["sidecar_visible{fact=listener_owners}"] == 0 and seen["engine_up"] == 1)
    seen = sidecar.wait(lambda seen: seen[f"connections_unaccepted{labels}"] == 4)
    assert seen[f"listener_accept_queue_depth{labels}"] == 4
    assert seen[f"listener_accept_queue_limit{labels}"] == 7
    assert seen["netns_passive_opens_total"] > 0
    assert seen["requests_total{outcome=ok}"] == 3
    assert not [name for name in seen if name.startswith(("process_open_fds", "process_up", "process_threads"))]
    assert failed(seen) == []
    assert victim("accept_all()") == 4
    sidecar.wait(lambda seen: seen[f"connections_unaccepted{labels}"] == 0)


def test_root_without_capabilities_by_pid_counts_descriptors_but_not_whose(
    processes: Processes, runtime_dir: Path
) -> None:
    needs(ROOT_WITHOUT_CAPABILITIES)
    needs(AS_NOBODY)
    victim = Victim(processes, AS_NOBODY)
    port = victim("listen(backlog=7)")
    engine = f"demo=pid:{victim.process.pid}"
    sidecar = Sidecar(processes, engine, runtime_dir, ROOT_WITHOUT_CAPABILITIES)
    seen = sidecar.wait(lambda seen: seen["process_up{process=engine}"] == 1)
    assert seen["sidecar_visible{fact=listener_owners}"] == 0
    assert seen["sidecar_visible{fact=network_namespace}"] == 0
    assert seen["process_threads{process=engine}"] == 1
    assert seen["process_max_fds{process=engine}"] > 0
    assert not [name for name in seen if f"port={port}" in name]
    if seen["sidecar_visible{fact=open_fds}"]:  # Linux 6.2 and later
        assert seen["process_open_fds{process=engine}"] > 3


def test_sockets_of_an_engine_in_another_network_namespace(processes: Processes, tmp_path: Path) -> None:
    needs(NEW_NETWORK)
    victim = Victim(processes, NEW_NETWORK)
    port = victim("listen(backlog=7)")
    victim(f"page('{tmp_path}', 'api', {{'http': '127.0.0.1:{port}'}})")
    sidecar = Sidecar(processes, f"demo=pid:{victim.process.pid}", tmp_path)
    limit = f"listener_accept_queue_limit{{port={port},role=http}}"
    seen = sidecar.wait(lambda seen: seen[limit] == 7)
    assert seen["sidecar_visible{fact=network_namespace}"] == 1
    assert seen["netns_active_opens_total"] == 0  # ours has had many
    victim.kill()
    seen = sidecar.wait(lambda seen: seen["engine_up"] == 0)
    assert "netns_active_opens_total" not in seen


def test_a_namespace_that_may_not_be_entered_is_absent(processes: Processes, runtime_dir: Path) -> None:
    needs(NEW_NETWORK)
    needs(AS_NOBODY)
    victim = Victim(processes, (*NEW_NETWORK, *AS_NOBODY))
    port = victim("listen(backlog=7)")
    victim(f"page('{runtime_dir}', 'api', {{'http': '127.0.0.1:{port}'}})")
    sidecar = Sidecar(processes, f"demo=pid:{victim.process.pid}", runtime_dir, AS_NOBODY)
    seen = sidecar.wait(lambda seen: seen["sidecar_visible{fact=network_namespace}"] == 0)
    seen = sidecar.wait(lambda seen: seen["process_up{process=api}"] == 1)
    assert not [name for name in seen if f"port={port}" in name]
    assert seen["netns_active_opens_total"] == 0
    assert failed(seen) == []


@pytest.mark.skipif(not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="needs /dev/net/tun")
def test_half_open_connections(processes: Processes, tmp_path: Path) -> None:
    needs(NEW_NETWORK)
    victim = Victim(processes, NEW_NETWORK)
    port = victim("listen(backlog=64, address='')")
    sidecar = Sidecar(processes, f"demo=pid:{victim.process.pid}", tmp_path)
    state = f"connections{{port={port},role=other,state=syn_received}}"
    sidecar.wait(lambda seen: seen[state] == 0)
    victim(f"half_open({port}, 13)")
    seen = sidecar.wait(lambda seen: seen[state] == 13)
    assert seen[f"listener_accept_queue_depth{{port={port},role=other}}"] == 0


def test_bound_and_not_listening(processes: Processes, tmp_path: Path) -> None:
    victim = Victim(processes)
    port = victim("listen(backlog=-1)")
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path)
    labels = f"{{port={port},role=http}}"
    seen = sidecar.wait(lambda seen: seen[f"listener_bound_sockets{labels}"] == 1)
    assert f"listener_up{labels}" not in seen
    victim("begin_to_listen()")
    seen = sidecar.wait(lambda seen: seen[f"listener_bound_sockets{labels}"] == 0 and seen[f"listener_up{labels}"] == 1)


def test_unaccepted_connections_are_the_accept_queue(processes: Processes, tmp_path: Path) -> None:
    victim = Victim(processes)
    port = victim("listen(backlog=7)")
    victim(f"connect({port}, 4)")
    sidecar = Sidecar(processes, f"demo=port:{port}", tmp_path)
    labels = f"{{port={port},role=http}}"
    sidecar.wait(lambda seen: seen[f"connections_unaccepted{labels}"] == 4)
    assert victim("accept_all()") == 4
    seen = sidecar.wait(lambda seen: seen[f"connections_unaccepted{labels}"] == 0)
    assert seen[f"connections{{port={port},role=http,state=established}}"] == 4
