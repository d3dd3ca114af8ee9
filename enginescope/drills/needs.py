"""What a drill may need that a machine or a stack may lack. Without it the drill is skipped by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from enginescope.stack import FAULTS, Stack

VLLM: Final = "vllm"


def _has_gpu(_: Stack) -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _runs_vllm(stack: Stack) -> bool:
    return VLLM in stack.offers


def _has_hooks(stack: Stack) -> bool:
    return FAULTS in stack.offers


def _has_namespace(stack: Stack) -> bool:
    return bool(stack.peer_namespace)


def _has_shipped_rules(stack: Stack) -> bool:
    return stack.time_scale == 1


def _is_root(_: Stack) -> bool:
    return os.geteuid() == 0


def _program(name: str) -> Callable[[Stack], bool]:
    return lambda _: shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


NEEDS: Final[dict[str, tuple[str, Callable[[Stack], bool]]]] = {
    "gpu": ("a GPU", _has_gpu),
    VLLM: ("vLLM", _runs_vllm),
    FAULTS: ("a stack started with --faults", _has_hooks),
    "namespace": ("a stack started with --network-namespace", _has_namespace),
    "shipped_rules": ("the rules as shipped (--time-scale 1)", _has_shipped_rules),
    "root": ("root", _is_root),
    "tc": ("the program tc", _program("tc")),
    "nft": ("the program nft", _program("nft")),
}
"""What may be needed: in words, and whether a stack has it."""


def needs(module: Any) -> tuple[str, ...]:
    """What a drill or decoy says it needs: ``NEEDS = "gpu"``, or a tuple of such words."""
    wanted: str | tuple[str, ...] = getattr(module, "NEEDS", ())
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def lacking(module: Any, stack: Stack) -> str | None:
    """Why this does not fit the stack, such as "needs a GPU"; None when it fits.

    Raises:
        KeyError: it needs something that nobody knows.
    """
    absent = [words for words, there in (NEEDS[need] for need in needs(module)) if not there(stack)]
    return f"needs {' and '.join(absent)}" if absent else None
