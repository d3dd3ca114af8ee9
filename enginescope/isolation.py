"""A network namespace for a stack, and a second one that stands for the rest of the world.

Drills that change sysctls, flood, lose packets or use up ports must not do that to the host. A veth pair joins the two
namespaces, so that there is a real interface to slow down and a real peer to lose packets. Both live as long as the
process that made them and what it started. Sources: network_namespaces(7), user_namespaces(7), setns(2).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from enginescope.stack import Stack

DEVICE: Final = "es0"
"""The interface of that name in each of the two namespaces."""
STACK_ADDRESS: Final = "10.79.0.1"
PEER_ADDRESS: Final = "10.79.0.2"
SILENT_NETWORK: Final = "10.80.0.0/16"
"""Addresses behind the peer that never answer anything."""

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_COMMAND_SECONDS: Final = 10
_libc = ctypes.CDLL(None, use_errno=True)


class IsolationError(Exception):
    """A namespace cannot be made or entered; the message is one sentence."""


def isolate() -> str:
    """Move this process into a new network namespace with a peer; the path of the peer's namespace.

    Without the right to make one, a user namespace comes with it, in which this user is root. The calling process must
    have one thread only.

    Raises:
        IsolationError: the kernel does not allow it, or the `ip` command is missing.
    """
    if shutil.which("ip") is None:
        raise IsolationError("a network namespace needs the `ip` command: install iproute2")
    try:
        _new_namespace()
        peer = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _call("unshare", _libc.unshare(_CLONE_NEWNET))
    except OSError as error:
        raise IsolationError(
            f"cannot make a network namespace: {error.strerror}; run as root, or allow users to make user namespaces "
            f"(kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        ) from error
    path = f"/proc/{os.getpid()}/fd/{peer}"
    _join(path)
    return path


def enter(stack: Stack) -> None:
    """Move this process into the network namespace of a stack, if that has one of its own.

    Raises:
        IsolationError: we may not.
    """
    if not stack.peer_namespace or _identity("self", "net") == _identity(stack.pid, "net"):
        return
    kinds = _CLONE_NEWNET
    if _identity("self", "user") != _identity(stack.pid, "user"):
        kinds |= _CLONE_NEWUSER
    try:
        process = os.pidfd_open(stack.pid)
        try:
            _call("setns", _libc.setns(process, kinds))
        finally:
            os.close(process)
    except OSError as error:
        raise IsolationError(
            f"cannot enter the network namespace of the stack (pid {stack.pid}): {error.strerror}; drill as the user "
            f"who started it"
        ) from error


@contextmanager
def in_peer(stack: Stack) -> Iterator[None]:
    """Let this thread act in the peer's namespace; sockets that it makes there stay there.

    Raises:
        IsolationError: the stack has no peer, or we may not enter its namespace.
    """
    if not stack.peer_namespace:
        raise IsolationError(
            "the stack has no network namespace of its own: start `enginescope up --network-namespace`"
        )
    with _within(stack.peer_namespace):
        yield


def prefix(pid: int) -> str:
    """What to type before a command to run it in the network namespace of a process."""
    same = _identity("self", "user") == _identity(os.getppid(), "user")
    return f"nsenter {'' if same else '--user --preserve-credentials '}--net --target {pid}"


def _new_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _libc.unshare(_CLONE_NEWNET))
    except PermissionError:
        _call("unshare", _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _join(peer: str) -> None:
    """Connect this namespace and the peer's."""
    _ip("link set lo up")
    _ip(f"link add {DEVICE} type veth peer name {DEVICE} netns {peer}")
    _ip(f"address add {STACK_ADDRESS}/24 dev {DEVICE}")
    _ip(f"link set {DEVICE} up")
    with _within(peer):
        _ip("link set lo up")
        _ip(f"address add {PEER_ADDRESS}/24 dev {DEVICE}")
        _ip(f"link set {DEVICE} up")
        _ip(f"route add blackhole {SILENT_NETWORK}")
    _ip(f"route add {SILENT_NETWORK} via {PEER_ADDRESS}")


def _ip(arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments.split()], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    if done.returncode:
        raise IsolationError(f"`ip {arguments}` failed: {done.stderr.strip()}")


@contextmanager
def _within(namespace: str) -> Iterator[None]:
    """Let this thread be in a network namespace for the length of a block."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter_path(namespace)
        try:
            yield
        finally:
            _call("setns", _libc.setns(back, _CLONE_NEWNET))
    finally:
        os.close(back)


def _enter_path(namespace: str) -> None:
    try:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", _libc.setns(descriptor, _CLONE_NEWNET))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise IsolationError(f"cannot enter the network namespace {namespace}: {error.strerror}") from error


def _identity(pid: int | str, kind: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def _call(name: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
