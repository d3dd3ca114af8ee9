import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import eventually

CODE = """
from instrumented_engine import faults
import time
started = time.monotonic()
faults.stall("stall_core")
try:
    faults.die("input_thread")
    print("alive", time.monotonic() - started >= 0.2, faults.ARMED)
except faults.InjectedFaultError:
    print("dead", time.monotonic() - started >= 0.2, faults.ARMED)
"""


def run(**environment: str) -> str:
    env = os.environ | environment
    return subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=30, check=True
    ).stdout.strip()


def test_without_the_variable_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "input_thread").touch()
    environment = {name: value for name, value in os.environ.items() if name != "ENGINESCOPE_FAULTS_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "alive False False"
    assert (tmp_path / "input_thread").exists()


def test_a_file_triggers_its_fault_once(tmp_path: Path) -> None:
    (tmp_path / "input_thread").touch()
    (tmp_path / "stall_core").write_text("0.2")
    assert run(ENGINESCOPE_FAULTS_DIR=str(tmp_path)) == "dead True True"
    assert run(ENGINESCOPE_FAULTS_DIR=str(tmp_path)) == "alive False True"


def test_a_stall_ends_early_when_its_file_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "stall_core").write_text("600")
    env = os.environ | {"ENGINESCOPE_FAULTS_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", CODE], env=env, stdout=subprocess.PIPE, text=True) as stalled:
        eventually("the stall", (tmp_path / "stall_core.now").exists)
        assert stalled.poll() is None
        (tmp_path / "stall_core.now").unlink()
        output, _ = stalled.communicate(timeout=30)
    assert output.startswith("alive")
