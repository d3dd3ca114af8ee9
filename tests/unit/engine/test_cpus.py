import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine.config import EngineSettings
from instrumented_engine.cpus import format_cpus, parse_cpus, resolve_cpus, share_of


@given(st.sets(st.integers(0, 300), min_size=1))
def test_what_is_written_is_read(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize("text", ["a", "3-1", "1,,2", "-1", "numa:", "numa:x", "1-2-3", " "])
def test_what_is_no_list_is_refused_as_a_flag(text: str) -> None:
    with pytest.raises(ValueError, match="--cpu-bind takes CPUs such as"):
        resolve_cpus(text) if EngineSettings(cpu_bind=text) else None


def test_a_node_is_looked_up(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "cpulist").write_text(f"{cpu}\n")
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "cpulist").write_text("\n")
    assert resolve_cpus("numa:0", tmp_path) == {cpu}
    with pytest.raises(ValueError, match="memory but no CPUs"):
        resolve_cpus("numa:1", tmp_path)
    with pytest.raises(ValueError, match="no such node, only 0, 1"):
        resolve_cpus("numa:7", tmp_path)


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 8))
def test_cores_share_the_cpus_out(cpus: set[int], cores: int) -> None:
    shares = [share_of(cpus, core, cores) for core in range(cores)]
    assert set().union(*shares) == cpus
    assert all(shares)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if len(cpus) >= cores:
        assert sum(sizes) == len(cpus)


def test_a_cpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"CPU 99999 is not among those this process may use \(\d"):
        resolve_cpus("99999")


def test_binding_holds_for_threads_that_start_later() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os, threading; from instrumented_engine.cpus import bind_process\n"
        f"assert bind_process('{cpu}') == 1 and bind_process('') is None\n"
        "thread = threading.Thread(target=lambda: print(os.sched_getaffinity(0))); thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == str({cpu})
