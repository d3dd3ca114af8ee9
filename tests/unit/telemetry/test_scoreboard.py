import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.layout import API, CORE, DURATION_BOUNDS, LAYOUTS
from telemetry.scoreboard import Liveness, PageError, Reader, Writer, pages, remove_stale, runtime_directory
from tests.conftest import eventually, running

WRITE_AND_WAIT = """
import sys, time
from collections.abc import Iterator
from pathlib import Path
from telemetry.layout import API
from telemetry.scoreboard import Writer
page = Writer(Path(sys.argv[1]), API, generation=3)
page["requests_ok"] = 42
if len(sys.argv) > 2:
    page.close()
else:
    print("ready", flush=True)
    time.sleep(60)
"""


def the_page(directory: Path) -> Path:
    return eventually("the page", lambda: next(pages(directory), None))


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path)) as process:
        the_page(tmp_path)
        yield process


def test_slots_histograms_and_endpoints(tmp_path: Path) -> None:
    writer = Writer(tmp_path, CORE, name="core-0")
    writer["steps"] = 2**64 - 1
    writer.slots[writer.index("step_tokens")] += 5
    histogram = writer.histogram("step")
    for value in (0, DURATION_BOUNDS[0], DURATION_BOUNDS[0] + 1, 10**15, -1):
        histogram.observe(value)
    writer.set_endpoints({"input": "ipc:///run/x", "output": "tcp://127.0.0.1:1"})
    reader = Reader(writer.path)
    counts, total = reader.histogram("step")
    assert (reader["steps"], reader.values()["step_tokens"]) == (2**64 - 1, 5)
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (3, 1, 1, 5)
    assert total == 2 * DURATION_BOUNDS[0] + 1 + 10**15
    assert reader.endpoints() == {"input": "ipc:///run/x", "output": "tcp://127.0.0.1:1"}
    assert (reader.header.role, reader.header.name, reader.header.pid) == ("core", "core-0", os.getpid())


def test_owner_of_a_running_process(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    reader = Reader(the_page(tmp_path))
    assert reader.owner() == other_process.pid
    assert reader.liveness() is Liveness.ALIVE
    eventually("the value", lambda: reader["requests_ok"] == 42)
    assert reader.header.generation == 3


def test_a_stopped_process_is_alive_and_readable(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    path = the_page(tmp_path)
    eventually("the value", lambda: Reader(path)["requests_ok"] == 42)
    os.kill(other_process.pid, signal.SIGSTOP)
    reader = Reader(path)
    assert (reader["requests_ok"], reader.liveness()) == (42, Liveness.ALIVE)
    os.kill(other_process.pid, signal.SIGCONT)


def test_a_killed_process_is_dead_even_as_a_zombie(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    reader = Reader(the_page(tmp_path))
    eventually("the value", lambda: reader["requests_ok"] == 42)
    other_process.kill()
    eventually("the death", lambda: reader.liveness() is Liveness.DEAD)
    assert other_process.returncode is None  # not reaped yet
    assert reader["requests_ok"] == 42


def test_a_clean_exit_is_told_from_death(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path), "leave"], check=True, timeout=30)
    assert Reader(the_page(tmp_path)).liveness() is Liveness.EXITED


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="making a pid namespace needs root")
def test_owner_in_another_pid_namespace_is_told_in_ours(tmp_path: Path) -> None:
    command = ("unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path))
    with running(*command) as process:
        reader = Reader(the_page(tmp_path))
        owner = reader.owner()
        assert reader.header.pid == 1
        assert owner not in (None, 0, 1)
        assert reader.liveness() is Liveness.ALIVE
        process.kill()  # --kill-child takes the namespace along
        eventually("the lock to be free", lambda: reader.owner() is None)
        assert reader.liveness() is Liveness.UNKNOWN


def test_another_layout_is_refused_with_both_sides_named(tmp_path: Path) -> None:
    path = Writer(tmp_path, API).path
    raw = bytearray(path.read_bytes())
    for offset, value in ((8, struct.pack("<I", 99)), (16, struct.pack("<Q", 1))):
        broken = tmp_path / "other.page"
        broken.write_bytes(raw[:offset] + value + raw[offset + len(value) :])
        with pytest.raises(PageError, match="run the same enginescope release on both sides"):
            Reader(broken)


def test_truncated_missing_and_foreign_files(tmp_path: Path) -> None:
    whole = Writer(tmp_path, API).path.read_bytes()
    broken = tmp_path / "broken.page"
    for content, sentence in ((whole[:5000], "truncated"), (b"", "not a scoreboard page"), (b"x" * 999, "not a")):
        broken.write_bytes(content)
        with pytest.raises(PageError, match=sentence):
            Reader(broken)
    with pytest.raises(PageError, match="cannot open"):
        Reader(tmp_path / "missing.page")


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_garbage_raises_page_error_only(garbage: bytes) -> None:
    path = Path("/dev/shm") / f"garbage-{os.getpid()}.page"
    for content in (garbage, b"ENGSCOPE" + garbage):
        path.write_bytes(content)
        try:
            Reader(path)
        except PageError:
            pass
        else:
            pytest.fail("garbage was taken for a page")
        finally:
            path.unlink()


def test_a_forked_child_writes_to_its_own_page(tmp_path: Path) -> None:
    writer = Writer(tmp_path, API)
    writer["requests_ok"] = 7
    slots, index = writer.slots, writer.index("requests_ok")  # what hot code keeps
    histogram = writer.histogram("receive")
    child = os.fork()
    if child == 0:
        slots[index] = 9
        histogram.observe(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = {path.name: Reader(path) for path in pages(tmp_path)}
    assert writer["requests_ok"] == 7
    assert sum(found[f"api-{os.getpid()}.page"].histogram("receive")[0]) == 0
    childs = found[f"api-{child}.page"]
    assert (childs["requests_ok"], childs.header.pid, childs.liveness()) == (9, child, Liveness.DEAD)


READ_OWN_PAGE = """
import sys, time
from pathlib import Path
from telemetry.layout import API
from telemetry.scoreboard import Reader, Writer
page = Writer(Path(sys.argv[1]), API)
Reader(page.path).close()
page["requests_ok"] = 42
time.sleep(60)
"""


def test_reading_its_own_page_does_not_drop_a_writers_lock(tmp_path: Path) -> None:
    with running(sys.executable, "-c", READ_OWN_PAGE, str(tmp_path)) as process:
        reader = Reader(the_page(tmp_path))
        eventually("the value", lambda: reader["requests_ok"] == 42)
        assert reader.owner() == process.pid


def test_remove_stale_keeps_the_living(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    subprocess.run([sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path), "leave"], check=True, timeout=30)
    (tmp_path / "foreign.page").write_bytes(b"not ours to delete")
    assert remove_stale(tmp_path) == 1
    left = {path.name for path in pages(tmp_path)}
    assert left == {f"api-{other_process.pid}.page", "foreign.page"}


def test_runtime_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINESCOPE_RUNTIME_DIR", str(tmp_path / "new"))
    assert runtime_directory(create=True).is_dir()
    if os.getuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, -1)
        monkeypatch.setenv("ENGINESCOPE_RUNTIME_DIR", str(foreign))
        with pytest.raises(PageError, match="belongs to uid 12345"):
            runtime_directory(create=True)


def test_slots_are_aligned_and_do_not_overlap() -> None:
    for layout in LAYOUTS.values():
        indexes = list(layout.slot_index.values())
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes)))
        starts = list(layout.histogram_index.values())
        assert all(start >= indexes[-1] + 1 for start in starts)
        assert layout.ring_offset % 4096 == 0
    assert len({layout.digest for layout in LAYOUTS.values()}) == len(LAYOUTS)
