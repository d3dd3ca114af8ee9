"""Addresses of TCP sockets as pairs of 64-bit words, so that numpy groups them without an object for each.

Source: struct inet_diag_msg in linux/inet_diag.h. An IPv4 address is the first of 16 bytes there, the others are 0.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""Addresses, shape (count, 2)."""

_LAYOUT: Final = (
    ("family", "u1", 16),
    ("port", ">u2", 20),
    ("peer_port", ">u2", 22),
    ("local", ("<u8", (2,)), 24),
    ("peer", ("<u8", (2,)), 40),
    ("inode", "<u4", 84),
)
ENDPOINTS: Final = np.dtype(
    {
        "names": [name for name, _, _ in _LAYOUT],
        "formats": [kind for _, kind, _ in _LAYOUT],
        "offsets": [offset for _, _, offset in _LAYOUT],
        "itemsize": 88,
    }
)
"""nlmsghdr and inet_diag_msg, with the addresses."""
_MAPPED: Final = np.uint64(0xFFFF0000)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
_SHIFTS: Final = (np.uint64(32), np.uint64(29))


def plain(words: npt.NDArray[Any]) -> Words:
    """A copy in which ::ffff:a.b.c.d is a.b.c.d, since both are the same address to TCP."""
    found = words.astype(np.uint64)
    mapped = (found[:, 0] == 0) & (found[:, 1] & _LOW_HALF == _MAPPED)
    found[mapped, 0] = found[mapped, 1] >> _SHIFTS[0]
    found[mapped, 1] = 0
    return found


def mix(local: Words, peer: Words, number: npt.NDArray[Any]) -> Words:
    """One 64-bit number for two addresses and a small number, shape (count,)."""
    mixed: Words = local @ _FACTORS[:2] + peer @ _FACTORS[2:] + number.astype(np.uint64) * _FACTORS[0]
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _FACTORS[1]
    mixed ^= mixed >> _SHIFTS[0]
    return mixed


def to_bytes(words: npt.NDArray[Any]) -> bytes:
    """4 bytes for an IPv4 address, 16 for an IPv6 one. 7f00:1:: and the like, which nobody has, pass for IPv4."""
    first, second = words.tolist()
    packed = struct.pack("<QQ", first, second)
    return packed[:4] if first and not second and first < 2**32 else packed
