"""Every parser of the kernel's answers, against numbers that no kernel writes and lines that only begin well.

A parser raises what it declares and nothing else, whatever it is given. The table names each of them, and a test finds
those that it lacks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import SidecarSettings
from sidecar.kernel import endpoints, fdkinds, inet_diag, interfaces, netlink, procfs, procinfo, sysctl, unix_diag
from sidecar.kernel.netlink import NetlinkError
from sidecar.kernel.procfs import ProcfsError
from sidecar.roles import parse_endpoints
from sidecar.target import parse_engine

MODULES = (endpoints, fdkinds, inet_diag, interfaces, netlink, procfs, procinfo, sysctl, unix_diag)
TEXT: dict[Callable[..., Any], tuple[str, tuple[type[Exception], ...]]] = {
    procfs.parse_stat: ("@ (a) S @ 4 4 0 -1 0 0 0 0 0 @ @ 0 0 20 0 @ 0 @ 0 @", (ProcfsError,)),
    procfs.parse_cmdline: ("@\0@", ()),
    procfs.parse_number: ("@", ()),
    procfs.parse_open_files_limit: ("Max open files   @   @   files", (ProcfsError,)),
    procfs.parse_net_counters: ("TcpExt: A B C\nTcpExt: @ -@ @\nTcp: D\nTcp: @", ()),
    procfs.parse_boot_time: ("cpu 1 2\nbtime @\n", (ProcfsError,)),
    procinfo.parse_status: ("NSpid:\t@\nvoluntary_ctxt_switches:\t@\nnonvoluntary_ctxt_switches:\t@", (ProcfsError,)),
    procinfo.parse_environment_names: ("A=@\0@=b", ()),
    procinfo.parse_sockstat: ("sockets: used @\nTCP: inuse @ orphan @ tw @ alloc 4 mem", ()),
    sysctl.parse_last_number: ("4096 @", ()),
    sysctl.parse_port_range: ("@ @", ()),
}
"""Parser of text -> content with a number at each @, and what it may raise."""
STRINGS: dict[Callable[..., Any], str] = {
    procfs.parse_socket_link: "socket:[@]",
    fdkinds.parse_kind: "anon_inode:[@]",
}
BINARY: dict[Callable[..., Any], tuple[type[Exception], ...]] = {
    interfaces.parse_messages: (NetlinkError,),
    interfaces.parse_attributes: (NetlinkError,),
    interfaces.parse_links: (NetlinkError,),
    interfaces.parse_addresses: (NetlinkError,),
    interfaces.parse_route: (NetlinkError,),
    interfaces.parse_ethtool_command: (),
}
OF_TWO = {procinfo.parse_mapped_files: ("7f00-7f01 r--p 0 0:0 @ /a@.page", b".page")}
WORDS = (
    st.integers(4295, 5000).map(lambda digits: "9" * digits)
    | st.integers(18, 25).map(lambda digits: "9" * digits)
    | st.integers(-(2**70), 2**70).map(str)
    | st.sampled_from(["", "-", "--1", "+1", "1_0", "0x1", "1.5", "1e9", "٣", "²", "unlimited"])
)


def filled(template: str, words: list[str]) -> str:
    first, *rest = template.split("@")
    return first + "".join(words[number % len(words)] + part for number, part in enumerate(rest))


def test_no_parser_is_left_out() -> None:
    found = {getattr(module, name) for module in MODULES for name in dir(module) if name.startswith("parse_")}
    assert found == {*TEXT, *STRINGS, *BINARY, *OF_TWO}


@pytest.mark.parametrize("parse", TEXT, ids=lambda parse: parse.__name__)
@given(words=st.lists(WORDS, min_size=1, max_size=4), cut=st.integers(0, 60))
def test_text(parse: Callable[[bytes], object], words: list[str], cut: int) -> None:
    template, declared = TEXT[parse]
    raw = filled(template, words).encode()
    for content in (raw, raw[:cut], raw[cut:]):
        try:
            parse(content)
        except declared:
            continue


@pytest.mark.parametrize("parse", STRINGS, ids=lambda parse: parse.__name__)
@given(words=st.lists(WORDS, min_size=1, max_size=2))
def test_links(parse: Callable[[str], object], words: list[str]) -> None:
    parse(filled(STRINGS[parse], words))


@given(words=st.lists(WORDS, min_size=1, max_size=2))
def test_mapped_files(words: list[str]) -> None:
    for parse, (template, suffix) in OF_TWO.items():
        parse(filled(template, words).encode(), suffix)


HEADER = struct.Struct("=IHHII")
MESSAGES = st.lists(
    st.tuples(st.sampled_from([2, 3, 16, 20, 24]), st.binary(max_size=60)).map(
        lambda pair: HEADER.pack(16 + len(pair[1]), pair[0], 0, 1, 0) + pair[1] + b"\0" * (-len(pair[1]) % 4)
    ),
    max_size=4,
).map(b"".join)


@pytest.mark.parametrize("parse", BINARY, ids=lambda parse: parse.__name__)
@given(data=MESSAGES | st.binary(max_size=120), cut=st.integers(0, 60))
def test_binary(parse: Callable[[bytes], object], data: bytes, cut: int) -> None:
    for content in (data, data[: len(data) - cut]):
        try:
            list(parse(content)) if parse is interfaces.parse_messages else parse(content)
        except BINARY[parse]:
            continue


def refusal(call: Callable[[], object]) -> str:
    """What the ValueError says; nothing where there is none."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


@given(WORDS)
def test_a_port_or_pid_of_any_length_is_taken_or_refused_in_one_sentence(word: str) -> None:
    ports = parse_endpoints({"http": f"127.0.0.1:{word}"}).ports
    assert all(0 < port < 65536 for port in ports)
    for text in (f"x=port:{word}", f"x=pid:{word}"):
        assert refusal(lambda text=text: parse_engine(text))[:8] in ("", "--engine")  # type: ignore[misc]
    settings = SidecarSettings("x=port:1", "127.0.0.1:0", "", "/proc")
    object.__setattr__(settings, "listen", f"h:{word}")
    assert refusal(settings.address)[:8] in ("", "--listen")


@pytest.mark.parametrize("word", ["0008099999", "00000000809999999999", "0" * 5000])
def test_zeros_in_front_hide_no_large_port(word: str) -> None:
    assert parse_endpoints({"http": f"127.0.0.1:{word}"}).ports == {}
    with pytest.raises(ValueError, match="--engine"):
        parse_engine(f"x=pid:{word}")
