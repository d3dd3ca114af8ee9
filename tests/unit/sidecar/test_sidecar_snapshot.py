from __future__ import annotations

import json
import logging

import pytest

from sidecar.collectors import Collectors, Visibility
from sidecar.config import SidecarSettings
from sidecar.metrics import families
from sidecar.snapshot import (
    CollectorRun,
    ConnectionSample,
    ConnectsSample,
    EndSample,
    Exemplar,
    HistogramSample,
    ListenerSample,
    PageSample,
    ProcessSample,
    Snapshot,
    TcpDetail,
    UnixSample,
)
from telemetry.catalog import BY_NAME
from telemetry.settings import SettingsError, parse

HISTOGRAM = HistogramSample((0.1, 1.0), (1, 2, 3), 4.5, {1: Exemplar("0" * 32, 0.5, 1.0)})
END = EndSample({"established": 1}, 2, 3, 4, 5, 6, TcpDetail(1, 2, 0.5, 0.75, 3, 1.5, 2.5, 4, 5, 6, 7.5, 8, 9.5))
FULL = Snapshot(
    wall_ns=10**18,
    monotonic=5.0,
    engine="demo",
    engine_up=True,
    processes=(ProcessSample("api", 1, 2, "running", 3.0, 4, 5, 6.0, None, None),),
    process_up={"api": True},
    listeners=(ListenerSample(80, "http", 1, 2, 3, 0.5, 4, HISTOGRAM),),
    connections=(
        ConnectionSample(80, "http", {"established": 1, "syn_sent": 0}, 2, 3, 4, ends={"accepted": END}),
        ConnectionSample(81, "input", {"close_wait": 3}, 2, 3, 4, 1, 0.5, 100, {"accepted": END, "connecting": END}),
        ConnectionSample(82, "other", {"established": 1, "last_ack": 1}, 2, 3, 4, ends={"accepted": END}),
    ),
    connects=ConnectsSample(1, 2.5),
    unix=(UnixSample("input", 2, 3, 4),),
    pages=(PageSample("exporter", "exporter", None, "dead", 0, 7, {"heartbeat_ns": 2**64 - 1}),),
    page_histograms={"api": {"receive": HISTOGRAM}},
    collectors={"netns": CollectorRun(success=False, seconds=0.5)},
    visible={"pages": False},
)


def test_round_trip_through_json() -> None:
    assert Snapshot.from_dict(json.loads(json.dumps(FULL.to_dict()))) == FULL


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="wall_ns"):
        Snapshot.from_dict({"engine": "demo"})


def test_an_empty_snapshot_has_no_zeros_for_what_it_did_not_see() -> None:
    empty = Snapshot(wall_ns=0, monotonic=0.0, engine="demo", engine_up=False)
    names = {family.name for family in families(empty, "1")}
    assert names == {
        "enginescope_build",
        "enginescope_engine_found",
        "enginescope_engine_up",
        "enginescope_sidecar_connection_detail_interval_seconds",
        "enginescope_sidecar_connection_scan_interval_seconds",
        "enginescope_sidecar_last_sample_timestamp_seconds",
        "enginescope_sidecar_loop_gap_seconds",
        "enginescope_sidecar_page_errors",
        "enginescope_sidecar_socket_dump_retries",
        "enginescope_sidecar_starved_seconds",
    }


def test_every_family_is_in_the_catalogue() -> None:
    for family in families(FULL, "1"):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        assert family.name + suffix in BY_NAME


DIRECTIONS = ("accepted", "connecting")
DETAIL: dict[str, float] = {
    "zero_window_sockets": 6,
    "memory_bytes": 3,
    "rtt_mean_seconds": 0.5,
    "rtt_max_seconds": 0.75,
    "segments_retransmitted_total": 3,
    "receiver_limited_seconds_total": 1.5,
    "buffer_limited_seconds_total": 2.5,
    "unacked_segments": 4,
    "unsent_bytes": 5,
    "delivery_min_bytes_per_second": 6,
    "delivery_median_bytes_per_second": 7.5,
}


def test_connections_as_metrics() -> None:
    found: dict[tuple[str, ...], float] = {}
    for family in families(FULL, "1"):
        for sample in family.samples:
            key = sample.name.removeprefix("enginescope_"), *sample.labels.values()
            if sample.labels.get("port") or "connects" in sample.name:
                found[key] = sample.value
    expected: dict[tuple[str, ...], float] = {
        ("connections", "81", "input", "close_wait"): 3,
        ("connections_unaccepted", "81", "input"): 4,
        ("connections_limit", "81", "input"): 100,
        ("close_wait_sockets", "81", "input", "owned"): 1,
        ("close_wait_sockets", "81", "input", "unaccepted"): 2,
        ("close_wait_oldest_seconds", "81", "input"): 0.5,
        ("peer_connections", "81", "input", "established"): 1,
        ("peer_connections", "81", "input", "syn_sent"): 0,
        ("peer_connections", "81", "input", "close_wait"): 0,
        ("receive_queue_bytes", "81", "input"): 2,
        ("send_queue_bytes", "81", "input"): 3,
        ("receive_queue_max_bytes", "81", "input"): 2,
        ("send_queue_max_bytes", "81", "input"): 3,
        ("queue_stuck_sockets", "81", "input", "receive"): 8,
        ("queue_stuck_sockets", "81", "input", "send"): 10,
        **{(f"connection_{name}", "81", "input", one): value for one in DIRECTIONS for name, value in DETAIL.items()},
    }
    assert {key: value for key, value in found.items() if "81" in key} == expected
    assert found["connections_unanswered", "80", "http"] == 8
    assert found["connections_unanswered_oldest_seconds", "80", "http"] == 9.5
    assert ("connections", "80", "http", "syn_sent") not in found
    assert {key for key in found if "82" in key} == {
        ("connections", "82", "other", "established"),
        ("close_wait_sockets", "82", "other", "owned"),
        ("close_wait_sockets", "82", "other", "unaccepted"),
        ("close_wait_oldest_seconds", "82", "other"),
    }
    assert found["connects_pending",] == 1
    assert found["connects_pending_oldest_seconds",] == 2.5


def test_a_failed_collector_is_logged_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    collectors = Collectors()
    with caplog.at_level(logging.ERROR):
        for collect in (lambda: 1 // 0, lambda: 1 // 0, lambda: 1, lambda: 1 // 0):
            collectors.run("x", collect)
    assert len(caplog.records) == 2
    assert collectors.runs["x"].success is False
    assert collectors.run("y", lambda value: value, 5) == 5


def test_a_hidden_fact_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    visibility = Visibility()
    with caplog.at_level(logging.WARNING):
        visibility.hide("x", "grant y")
        visibility.hide("x", "grant y")
    assert [record.getMessage() for record in caplog.records] == ["grant y"]
    visibility.show("x")
    assert visibility.facts == {"x": True}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "missing --engine"),
        (["--engine=x"], "--engine takes NAME=port"),
        (["--engine=x=port:1", "--listen=9177"], "--listen takes HOST:PORT, not '9177'"),
        (["--engine=x=port:1", "--listen=a:99999"], "--listen takes HOST:PORT"),
        (["--engine=x=port:1", "--proc-root=/nonexistent"], "is not a directory"),
    ],
)
def test_bad_settings_are_one_sentence(arguments: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse(SidecarSettings, "sidecar", arguments, {})


def test_listen_address() -> None:
    def address(text: str) -> tuple[str, int]:
        return parse(SidecarSettings, "sidecar", ["--engine=x=port:1", f"--listen={text}"], {}).address()

    assert address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert address("[::1]:9177") == ("::1", 9177)
