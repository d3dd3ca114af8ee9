"""``--cpu-bind``: the CPUs that the core processes may run on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_NODES: Final = Path("/sys/devices/system/node")
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_cpus(text: str) -> set[int]:
    """CPU numbers of a list such as ``0-3,8``.

    Raises:
        ValueError: not such a list.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"--cpu-bind takes CPUs such as 0-3,8 or a node such as numa:0, not {text!r}")
        cpus |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return cpus


def resolve_cpus(text: str, nodes: Path = _NODES) -> set[int]:
    """The CPUs of a list or of ``numa:N``, checked against what this process may use.

    Raises:
        ValueError: one sentence that names the flag and what is there instead.
    """
    cpus = _cpus_of_node(text, nodes) if text.startswith("numa:") else parse_cpus(text)
    allowed = os.sched_getaffinity(0)
    if not cpus <= allowed:
        raise ValueError(
            f"--cpu-bind {text}: CPU {min(cpus - allowed)} is not among those this process may use "
            f"({format_cpus(allowed)})"
        )
    return cpus


def _cpus_of_node(text: str, nodes: Path) -> set[int]:
    number = text.removeprefix("numa:")
    if not number.isdigit():
        raise ValueError(f"--cpu-bind takes CPUs such as 0-3,8 or a node such as numa:0, not {text!r}")
    try:
        cpus = (nodes / f"node{number}" / "cpulist").read_text().strip()
    except OSError:
        there = sorted(path.name.removeprefix("node") for path in nodes.glob("node[0-9]*"))
        raise ValueError(f"--cpu-bind {text}: there is no such node, only {', '.join(there) or 'none'}") from None
    if not cpus:
        raise ValueError(f"--cpu-bind {text}: that node has memory but no CPUs")
    return parse_cpus(cpus)


def format_cpus(cpus: set[int]) -> str:
    """A set as the kernel writes it: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def share_of(cpus: set[int], core: int, cores: int) -> set[int]:
    """The part of the CPUs for one core of several: neighbours, and one at least, which may be another core's, too."""
    ordered = sorted(cpus)
    if len(ordered) < cores:
        return {ordered[core % len(ordered)]}
    first, end = (len(ordered) * place // cores for place in (core, core + 1))
    return set(ordered[first:end])


def bind_process(text: str, core: int = 0, cores: int = 1) -> int | None:
    """Bind all threads of this process to its share of the CPUs, and those that they will start.

    Returns:
        The number of CPUs, None when there is nothing to do.

    Raises:
        ValueError: one sentence.
    """
    if not text:
        return None
    cpus = share_of(resolve_cpus(text), core, cores)
    for task in Path("/proc/self/task").iterdir():  # numerical libraries start threads when they are imported
        os.sched_setaffinity(int(task.name), cpus)
    return len(cpus)
