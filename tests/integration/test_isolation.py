"""A process that makes its own network namespace with a peer, and another one that enters it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enginescope.isolation import IsolationError, in_peer, isolate
from enginescope.stack import Stack
from tests.conftest import eventually

ISOLATED = """
import os, socket, sys
from enginescope.isolation import isolate
from enginescope.stack import Stack
peer = isolate()
server = socket.create_server(("0.0.0.0", 8000))
Stack(os.getpid(), "demo", {"engine": 8000}, {}, sys.argv[1], peer_namespace=peer).save()
sys.stdin.read()
"""
VISITOR = """
import socket, sys
from pathlib import Path
from enginescope.isolation import DEVICE, PEER_ADDRESS, STACK_ADDRESS, enter, in_peer
from enginescope.stack import Stack
stack = Stack.load(sys.argv[1])
enter(stack)
enter(stack)
socket.create_connection(("127.0.0.1", 8000), 5)
with in_peer(stack):
    client = socket.create_connection((STACK_ADDRESS, 8000), 5)
assert client.getsockname()[0] == PEER_ADDRESS
setting = Path("/proc/sys/net/ipv4/tcp_syncookies")
setting.write_text("0")
silent = socket.socket()
silent.settimeout(1.5)
assert silent.connect_ex(("10.80.0.9", 80)) == 11, "something answered"
print(DEVICE in dict((name, number) for number, name in socket.if_nameindex()), setting.read_text().strip())
"""
UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@contextmanager
def isolated(runtime_dir: Path, *prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*prefix, sys.executable, "-c", ISOLATED, str(runtime_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually("the marker", lambda: (runtime_dir / "stack.json").exists() or process.poll() is not None, 30)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def visit(runtime_dir: Path, *prefix: str) -> str:
    command = [*prefix, sys.executable, "-c", VISITOR, str(runtime_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_visitor_reaches_both_ends_and_changes_nothing_outside(tmp_path: Path) -> None:
    setting = Path("/proc/sys/net/ipv4/tcp_syncookies")
    before = setting.read_text()
    with isolated(tmp_path):
        assert visit(tmp_path) == "True 0"
        assert setting.read_text() == before
        assert "es0" not in [name for _, name in socket.if_nameindex()]


def _users_may_make_namespaces() -> bool:
    return subprocess.run([*UNPRIVILEGED, "unshare", "--user", "--net", "true"], check=False).returncode == 0


def test_without_rights_a_user_namespace_comes_with_it(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not _users_may_make_namespaces():
        pytest.skip("needs root to become another user, and a kernel that lets users make namespaces")
    if (
        not os.access(sys.executable, os.X_OK)
        or subprocess.run(
            [*UNPRIVILEGED, sys.executable, "-c", "import enginescope.isolation"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("another user cannot read this checkout")
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    with isolated(tmp_path, *UNPRIVILEGED):
        assert visit(tmp_path, *UNPRIVILEGED) == "True 0"


def test_a_stack_without_a_namespace_has_no_peer(tmp_path: Path) -> None:
    stack = Stack(os.getpid(), "demo", {}, {}, str(tmp_path))
    with pytest.raises(IsolationError, match="up --network-namespace"), in_peer(stack):
        pass


def test_the_missing_command_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IsolationError, match="install iproute2"):
        isolate()
