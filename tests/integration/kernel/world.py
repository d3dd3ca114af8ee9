"""What the tests of this folder need of the machine, and what they share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.kernel import procfs
from tests.integration.network import Host, Watcher
from tests.integration.test_sidecar_visibility import NEW_NETWORK, works

_TOOLS = ("ip", "nsenter", "nstat", "ss", "unshare")
_MISSING = [tool for tool in _TOOLS if shutil.which(tool) is None]

MARKS = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to make network namespaces"),
    pytest.mark.skipif(bool(_MISSING), reason=f"needs {', '.join(_MISSING)}"),
    pytest.mark.skipif(not _MISSING and not works(NEW_NETWORK), reason="this machine refuses network namespaces"),
]
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft, of the package nftables")
needs_tc = pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc, of the package iproute2")
needs_tun = pytest.mark.skipif(not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="needs /dev/net/tun")

Watch = Callable[..., Watcher]
PORT = 8000


def raw_counters(host: Host) -> dict[str, int]:
    """Also those that are not exported."""
    return procfs.read_net_counters(Path("/proc"), host.process.pid)
