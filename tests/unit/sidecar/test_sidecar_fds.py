from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors import Visibility
from sidecar.fds import FdTracker
from sidecar.kernel.fdkinds import KINDS, DescriptorTable, parse_kind
from sidecar.target import Member

LINKS = {
    "socket:[55001]": "socket",
    "pipe:[7]": "pipe",
    "anon_inode:[eventfd]": "eventfd",
    "anon_inode:[eventpoll]": "epoll",
    "anon_inode:inotify": "inotify",
    "anon_inode:[timerfd]": "other",
    "/memfd:cuda (deleted)": "shm",
    "/dev/shm/psm_1": "shm",
    "/SYSV00000000 (deleted)": "shm",
    "/dev/nvidia0": "device",
    "/dev/null": "device",
    "/models/a b.gguf": "file",
    "net:[4026531840]": "other",
    "": "other",
}


@pytest.mark.parametrize(("link", "kind"), LINKS.items())
def test_kind_of_a_link(link: str, kind: str) -> None:
    assert parse_kind(link) == kind


@given(st.text() | st.text("/:[]devshmanon_iodepipsock", max_size=20))
def test_any_link_has_a_kind(link: str) -> None:
    assert parse_kind(link) in KINDS


class Fds:
    """A /proc/7/fd of our own making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "7" / "fd"
        self.directory.mkdir(parents=True)

    def set(self, links: dict[int, str]) -> None:
        for path in self.directory.iterdir():
            path.unlink()
        for number, link in links.items():
            (self.directory / str(number)).symlink_to(link)


DESCRIPTORS = st.dictionaries(st.integers(0, 40), st.sampled_from([link for link in LINKS if link]), max_size=20)


@given(st.lists(DESCRIPTORS, min_size=1, max_size=4), st.integers(0, 30))
def test_counts_are_those_of_the_links_once_the_budget_sufficed(
    tmp_path_factory: pytest.TempPathFactory, states: list[dict[int, str]], budget: int
) -> None:
    fds = Fds(tmp_path_factory.mktemp("proc"))
    table = DescriptorTable()
    for links in states:
        fds.set(links)
        table.update(fds.root, 7, budget, again=40)
        assert sum(table.counts.values()) + table.unread == len(links)
        table.update(fds.root, 7, 40, again=40)
        assert table.counts == Counter(LINKS[link] for link in links.values())
        assert table.unread == 0


def test_only_new_links_are_read_and_a_few_known_ones_in_turn(tmp_path: Path) -> None:
    fds = Fds(tmp_path)
    links = dict.fromkeys(range(10), "socket:[1]")
    fds.set(links)
    table = DescriptorTable()
    assert table.update(tmp_path, 7, budget=6, again=0) == 6
    assert (table.counts, table.unread) == ({"socket": 6}, 4)
    assert table.update(tmp_path, 7, budget=6, again=0) == 4
    assert table.update(tmp_path, 7, budget=6, again=0) == 0
    fds.set(links | {9: "pipe:[2]"})  # closed and opened again between two listings
    for turn in range(4):
        assert table.update(tmp_path, 7, budget=6, again=3) == 3
        assert table.counts == ({"socket": 10} if turn < 3 else {"socket": 9, "pipe": 1})


def test_this_process_agrees_with_its_links() -> None:
    left, right = os.pipe()
    table = DescriptorTable()
    read = table.update(Path("/proc"), os.getpid(), 10_000, again=0)
    assert table.counts["pipe"] >= 2
    assert sum(table.counts.values()) == read - 1  # the listing itself, closed since
    assert table.unread == 0
    os.close(left)
    os.close(right)


@pytest.fixture
def cpu() -> list[float]:
    return [0.0]


def test_a_costly_pass_comes_more_rarely_and_a_new_process_at_once(tmp_path: Path, cpu: list[float]) -> None:
    Fds(tmp_path).set({0: "pipe:[1]"})

    def costly() -> float:
        cpu[0] += 0.0015
        return cpu[0]

    tracker = FdTracker(tmp_path, Visibility(), costly)
    tracker.collect([Member(7, 1, "api")], now=0)
    (tmp_path / "7" / "fd" / "1").symlink_to("socket:[5]")
    tracker.collect([Member(7, 1, "api")], now=2)
    assert tracker.samples[0].kinds == {"pipe": 1}
    tracker.collect([Member(7, 1, "api")], now=3)
    assert tracker.samples[0].kinds == {"pipe": 1, "socket": 1}
    tracker.collect([Member(7, 2, "api")], now=3.5)
    assert tracker.samples[0].kinds == {"pipe": 1, "socket": 1}
    tracker.collect([Member(8, 2, "api")], now=3.6)
    assert tracker.samples == ()


def test_the_budget_is_one_for_all_processes(tmp_path: Path) -> None:
    for pid in (7, 8):
        directory = tmp_path / str(pid) / "fd"
        directory.mkdir(parents=True)
        for number in range(3000):
            (directory / str(number)).symlink_to("pipe:[1]")
    tracker = FdTracker(tmp_path, Visibility(), lambda: 0.0)
    members = [Member(7, 1, "api"), Member(8, 1, "core")]
    tracker.collect(members, now=0)
    assert [sample.unread for sample in tracker.samples] == [0, 2000]
    tracker.collect(members, now=1)
    assert [sample.unread for sample in tracker.samples] == [0, 0]
    assert [sample.kinds for sample in tracker.samples] == [{"pipe": 3000}] * 2
