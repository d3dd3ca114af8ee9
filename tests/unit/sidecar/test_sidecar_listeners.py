from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sidecar.collectors import Visibility
from sidecar.kernel import procfs
from sidecar.kernel.inet_diag import LISTENER
from sidecar.listeners import ListenerOwners, ListenerTracker
from sidecar.target import Member


def rows(*values: tuple[int, int, int, int, int, int]) -> npt.NDArray[Any]:
    """(port, inode, cookie, depth, limit, drops) each."""
    return np.array(list(values), LISTENER)


def owners(root: Path = Path("/proc")) -> ListenerOwners:
    return ListenerOwners(root, Visibility())


def give(root: Path, pid: int, *inodes: int) -> Member:
    directory = root / str(pid) / "fd"
    directory.mkdir(parents=True, exist_ok=True)
    for inode in inodes:
        (directory / str(inode)).symlink_to(f"socket:[{inode}]")
    return Member(pid, 1, "api")


def test_reuseport_sums_and_the_fullest_socket() -> None:
    tracker = ListenerTracker(80)
    (sample,) = tracker.observe(rows((80, 1, 11, 9, 8, 3), (80, 2, 12, 4, 16, 0), (81, 3, 13, 0, 5, 0)), owners())
    assert (sample.port, sample.role, sample.sockets) == (80, "http", 2)
    assert (sample.depth, sample.limit, sample.drops) == (13, 24, 3)
    assert sample.fill == 9 / 8
    assert sample.fills.counts == (0, 0, 0, 0, 0, 0, 0, 1)


def test_drops_survive_a_listener_that_was_made_again() -> None:
    tracker = ListenerTracker(80)
    drops = [
        tracker.observe(found, owners())[0].drops
        for found in (rows((80, 1, 11, 0, 8, 7)), rows(), rows((80, 2, 12, 0, 8, 2)), rows((80, 2, 12, 0, 8, 5)))
    ]
    assert drops == [7, 7, 9, 12]


def test_a_vanished_listener_is_there_with_no_socket_and_takes_no_fill() -> None:
    tracker = ListenerTracker(80)
    assert tracker.observe(rows(), owners()) == ()
    tracker.observe(rows((80, 1, 11, 0, 8, 0)), owners())
    (sample,) = tracker.observe(rows(), owners())
    assert sample.sockets == 0
    assert sum(sample.fills.counts) == 1


def test_listen_zero_is_full_with_one() -> None:
    (sample,) = ListenerTracker(80).observe(rows((80, 1, 11, 1, 0, 0)), owners())
    assert sample.fill == 1.0


def test_own_listeners_by_inode_and_foreign_ones_on_the_same_port(tmp_path: Path) -> None:
    member = give(tmp_path, 5, 1, 3)
    found = owners(tmp_path)
    found.update({1, 2, 3}, [member])
    tracker = ListenerTracker(80)
    samples = tracker.observe(rows((80, 1, 11, 1, 8, 0), (80, 2, 12, 5, 8, 0), (99, 3, 13, 0, 4, 0)), found)
    assert [(sample.port, sample.role, sample.depth) for sample in samples] == [(80, "http", 1), (99, "other", 0)]


def test_roles_come_from_the_pages_and_stay_over_a_restart() -> None:
    tracker = ListenerTracker(80)
    tracker.set_roles({5555: "input"})
    tracker.set_roles({})
    samples = tracker.observe(rows((5555, 1, 11, 0, 8, 0), (80, 2, 12, 0, 8, 0)), owners())
    assert [(sample.port, sample.role) for sample in samples] == [(80, "http"), (5555, "input")]


def test_listeners_without_a_role_are_bounded_and_forgotten(tmp_path: Path) -> None:
    inodes = set(range(1, 31))
    found = owners(tmp_path)
    found.update(inodes, [give(tmp_path, 5, *inodes)])
    tracker = ListenerTracker(None)
    many = rows(*((1000 + inode, inode, inode, 0, 1, 0) for inode in inodes))
    assert [sample.port for sample in tracker.observe(many, found)] == list(range(1001, 1009))
    assert tracker.observe(rows(), found) == ()


def test_descriptors_are_read_for_new_listeners_and_processes_only(tmp_path: Path) -> None:
    member = give(tmp_path, 5, 1)
    found = owners(tmp_path)
    found.update({1, 2}, [member])
    (tmp_path / "5" / "fd" / "1").unlink()
    found.update({1, 2}, [member])
    assert (found.owned, found.foreign) == ({1}, {2})
    found.update({1, 2}, [member, give(tmp_path, 6, 2)])
    assert found.owned == {1, 2}


def test_an_owner_is_found_and_looked_for_more_and_more_rarely(tmp_path: Path) -> None:
    give(tmp_path, 5, 7)
    visibility = Visibility()
    found = ListenerOwners(tmp_path, visibility)
    assert found.find({9}, [5], now=0.0) is None
    assert visibility.facts == {"listener_owners": False}
    give(tmp_path, 6, 9)
    assert found.find({9}, [5, 6], now=0.5) is None
    assert found.find({9}, [5, 6], now=1.5) == 6
    assert found.find({9}, [5], now=1.6) is None  # it ended


def test_hidden_descriptors_fall_back_to_the_port(tmp_path: Path, monkeypatch: Any) -> None:
    member = give(tmp_path, 5, 1)
    visibility = Visibility()
    found = ListenerOwners(tmp_path, visibility)

    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    found.update({1, 2}, [member])
    assert visibility.facts == {"listener_owners": False}
    (sample,) = ListenerTracker(80).observe(rows((80, 2, 12, 5, 8, 0)), found)
    assert sample.depth == 5


def test_holders_of_a_listener_are_those_who_serve_it(tmp_path: Path) -> None:
    found = owners(tmp_path)
    parent, *workers = [give(tmp_path, pid, 1) for pid in (10, 11, 12)]
    other = give(tmp_path, 13, 2)
    found.update({1, 2}, [parent, *workers, other])
    assert found.holders({1}, {11: 10, 12: 10, 13: 10}) == {11, 12}, "the supervisor serves none of its own"
    assert found.holders({1}, {}) == {10, 11, 12}
    assert found.holders({2}, {}) == {13}
    assert found.holders({3}, {}) == set()
    found.update({1, 2}, [parent, workers[0]])
    assert found.holders({1, 2}, {}) == {10, 11}, "two died"
    found.update({1, 3}, [give(tmp_path, 10, 3)])
    assert found.holders({3}, {}) == {10}


def test_holders_that_are_hidden_are_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> set[int]:
        raise PermissionError

    monkeypatch.setattr(procfs, "read_socket_inodes", refuse)
    found = owners(tmp_path)
    found.update({1}, [give(tmp_path, 10, 1)])
    assert found.holders({1}, {}) == set()


def test_rows_that_did_not_change_count_as_samples_and_are_judged_anew_with_new_owners(tmp_path: Path) -> None:
    tracker, found = ListenerTracker(80), owners(tmp_path)
    unchanged = rows((80, 1, 11, 4, 8, 2), (80, 2, 12, 8, 8, 5))
    fills = [tracker.observe(unchanged, found)[0].fills for _ in range(3)]
    assert [sum(one.counts) for one in fills] == [1, 2, 3]
    assert [one.total for one in fills] == [1.0, 2.0, 3.0]
    found.update({1, 2}, [give(tmp_path, 5, 1)])
    (sample,) = tracker.observe(unchanged, found)
    assert (sample.sockets, sample.depth, sample.fills.total) == (1, 4, 3.5)
    assert (sample.drops, sample.changes) == (7, 0), "the other one's drops were counted while it seemed to be ours"
    tracker.set_roles({81: "http"})
    assert [one.sockets for one in tracker.observe(unchanged, found)] == [1]
