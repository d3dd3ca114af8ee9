"""Where the sockets of each core are."""

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_engine import endpoints
from instrumented_engine.config import EngineSettings
from instrumented_engine.endpoints import Endpoints
from telemetry.layout import API, ENDPOINT_ENTRIES, MAX_CORES, endpoint_roles
from telemetry.scoreboard import Reader, Writer


def test_the_first_core_has_the_endpoints_that_were_given() -> None:
    ipc = endpoints.default(Path("/run/es"), 7, "", 29600)
    assert endpoints.of_core(ipc, 0) == ipc == ("ipc:///run/es/input-7.sock", "ipc:///run/es/output-7.sock")
    assert endpoints.of_core(ipc, 3) == ("ipc:///run/es/input-7-3.sock", "ipc:///run/es/output-7-3.sock")
    tcp = endpoints.default(Path("/run/es"), 7, "10.0.0.1", 29600)
    assert endpoints.of_core(tcp, 0) == ("tcp://10.0.0.1:29600", "tcp://10.0.0.1:29601")
    assert endpoints.of_core(tcp, 2) == ("tcp://10.0.0.1:29604", "tcp://10.0.0.1:29605")
    assert endpoints.default(Path("/run/es"), 7, "fe80::1", 1).input == "tcp://[fe80::1]:1"


@given(
    st.ip_addresses().map(str) | st.just(""),
    st.integers(1, 65536 - 2 * MAX_CORES),
    st.integers(1, MAX_CORES),
)
def test_no_two_sockets_of_an_engine_have_the_same_endpoint(address: str, port: int, cores: int) -> None:
    first = endpoints.default(Path("/run/es"), 7, address, port)
    endpoints.check(first, cores)
    every = [endpoint for core in range(cores) for endpoint in endpoints.of_core(first, core)]
    assert len(set(every)) == 2 * cores


@pytest.mark.parametrize(
    ("first", "cores", "sentence"),
    [
        (Endpoints("tcp://h:5000", "tcp://h:5004"), 3, "come to the same tcp://h:5004"),
        (Endpoints("ipc://x", "ipc://x"), 1, "come to the same ipc://x"),
        (Endpoints("tcp://h:65530", "tcp://h:1"), 8, "--input-endpoint must end with a port that leaves room for 8"),
        (Endpoints("tcp://h", "tcp://h:1"), 1, "--input-endpoint must end with a port"),
        (Endpoints("tcp://h:*", "tcp://h:1"), 1, "--input-endpoint must end with a port"),
        (Endpoints("", "udp://h:1"), 1, "--output-endpoint must begin with ipc:// or tcp://"),
        (Endpoints("", "ipc://" + "x" * 104), 2, "a unix socket path has at most 107 bytes"),
    ],
)
def test_endpoints_that_cannot_work_are_refused(first: Endpoints, cores: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EngineSettings(input_endpoint=first.input, output_endpoint=first.output, data_parallel_size=cores)


def test_what_one_core_may_have_needs_not_leave_room_for_others() -> None:
    endpoints.check(Endpoints("tcp://h:5000", "tcp://h:5004"), 1)
    endpoints.check(Endpoints("tcp://h:5000", "tcp://h:5001"), MAX_CORES)
    endpoints.check(Endpoints("tcp://h:65535", ""), 1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data_parallel_size": 9}, "--data-parallel-size must be between 1 and 8"),
        ({"data_parallel_size": 2, "core_index": 2}, "--core-index 2: there are only 2 cores"),
        ({"bind_address": "10.0.0.1", "interface": "lo"}, "give one of them"),
        ({"bind_address": "localhost"}, "--bind-address takes an IP address, not 'localhost'"),
        ({"bind_address": "0.0.0.0"}, "it must be one address of this host"),
        ({"bind_address": "ff02::1"}, "it must be one address of this host"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EngineSettings(**settings)  # type: ignore[arg-type]


def test_an_interface_has_an_address() -> None:
    assert ipaddress.ip_address(endpoints.address_of("lo")).is_loopback
    endpoints.verify_address(endpoints.address_of("lo"))


def test_a_wrong_interface_or_address_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"--interface eno77: there is no such interface, only .*\blo\b"):
        endpoints.address_of("eno77")
    with pytest.raises(ValueError, match=r"--bind-address 203\.0\.113\.9: cannot be bound here: "):
        endpoints.verify_address("203.0.113.9")


def test_a_page_has_room_for_the_sockets_of_all_cores(tmp_path: Path) -> None:
    page = Writer(tmp_path, API)
    every = {"http": "127.0.0.1:1"}
    for core in range(MAX_CORES):
        every |= endpoint_roles(core, f"tcp://h:{core}", f"tcp://h:1{core}")
    page.set_endpoints(every)
    reader = Reader(page.path)
    assert reader.endpoints() == every
    assert len(every) <= ENDPOINT_ENTRIES
    page.close()
