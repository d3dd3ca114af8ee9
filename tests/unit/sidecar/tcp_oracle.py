"""Connections of a dump, an object each and added up in plain loops: slow, and independent of the code under test."""

from __future__ import annotations

import statistics
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.unit.sidecar.oracle import HEADER, INET, SKMEMINFO, InetSocket, inet_message

INFO = 2
ESTABLISHED, CLOSE_WAIT = 1, 8
NEVER_SENT = 2**32 - 1
STATES = {
    1: "established",
    2: "syn_sent",
    3: "syn_received",
    4: "fin_wait_1",
    5: "fin_wait_2",
    6: "time_wait",
    8: "close_wait",
    9: "last_ack",
    11: "closing",
}
_PARTS = (  # struct tcp_info of linux/tcp.h, in its order
    ("B", "state ca_state retransmits probes backoff options wscale app_limited"),
    ("I", "rto ato snd_mss rcv_mss unacked sacked lost retrans fackets last_data_sent last_ack_sent last_data_recv"),
    ("I", "last_ack_recv pmtu rcv_ssthresh rtt rttvar snd_ssthresh snd_cwnd advmss reordering rcv_rtt rcv_space"),
    ("I", "total_retrans"),
    ("Q", "pacing_rate max_pacing_rate bytes_acked bytes_received"),
    ("I", "segs_out segs_in notsent_bytes min_rtt data_segs_in data_segs_out"),
    ("Q", "delivery_rate busy_time rwnd_limited sndbuf_limited"),
    ("I", "delivered delivered_ce"),
    ("Q", "bytes_sent bytes_retrans"),
    ("I", "dsack_dups reord_seen rcv_ooopack snd_wnd rcv_wnd rehash"),
)
_NAMES = [(name, kind) for kind, names in _PARTS for name in names.split()]
INFO_STRUCT = struct.Struct("=" + "".join(kind for _, kind in _NAMES))
INFO_ENDS = {
    name: struct.calcsize("=" + "".join(kind for _, kind in _NAMES[: index + 1]))
    for index, (name, _) in enumerate(_NAMES)
}


@dataclass(frozen=True)
class TcpSocket:
    """``info`` holds the fields of tcp_info that this socket's kernel has, and is None without TCP_INFO."""

    base: InetSocket
    timer: int = 0
    info: Mapping[str, int] | None = None
    memory: tuple[int, ...] | None = None


def info(size: int = INFO_STRUCT.size, **fields: int) -> dict[str, int]:
    """The fields that a tcp_info of ``size`` bytes has; those not given are 0, and the peer's window is open."""
    values = dict.fromkeys(INFO_ENDS, 0) | {"snd_wnd": 65536} | fields
    return {name: value for name, value in values.items() if INFO_ENDS[name] <= size}


def tcp_message(one: TcpSocket) -> bytes:
    extras = list(one.base.extras)
    if one.memory is not None:
        extras.append((SKMEMINFO, struct.pack("=9I", *one.memory)))
    if one.info is not None:
        size = max(INFO_ENDS[name] for name in one.info)
        packed = INFO_STRUCT.pack(*(one.info.get(name, 0) for name in INFO_ENDS))
        extras.append((INFO, packed[:size]))
    raw = bytearray(inet_message(replace(one.base, extras=tuple(extras))))
    raw[18] = one.timer
    return bytes(raw)


def read_tcp(data: bytes) -> Iterator[TcpSocket]:
    """Every connection of one reply, up to its end."""
    offset = 0
    while offset < len(data):
        size, kind, _, _, _ = HEADER.unpack_from(data, offset)
        if kind == 3:
            return
        values = INET.unpack_from(data, offset + 16)
        attributes = dict(_attributes(data[offset + 16 + INET.size : offset + size]))
        port, peer_port = struct.unpack(">HH", values[4] + values[5])
        yield TcpSocket(
            InetSocket(
                port=port,
                state=values[1],
                receive=values[11],
                send=values[12],
                inode=values[14],
                cookie=values[9],
                family=values[0],
                peer_port=peer_port,
            ),
            values[2],
            _read_info(attributes[INFO]) if INFO in attributes else None,
            struct.unpack_from("=9I", attributes[SKMEMINFO]) if SKMEMINFO in attributes else None,
        )
        offset += size + -size % 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, place)
        yield kind & 0x3FFF, data[place + 4 : place + length]
        place += length + -length % 4


def _read_info(payload: bytes) -> dict[str, int]:
    values = INFO_STRUCT.unpack(payload[: INFO_STRUCT.size].ljust(INFO_STRUCT.size, b"\0"))
    return {name: value for name, value in zip(INFO_ENDS, values, strict=True) if INFO_ENDS[name] <= len(payload)}


def summary(
    sockets: Sequence[TcpSocket],
    port: int,
    roles: Mapping[int, str],
    fields: Mapping[str, int],
    idle_ms: int = NEVER_SENT,
) -> dict[str, Any]:
    """The ``ConnectionSample`` of a first scan, as a dict; ``fields`` are those that the kernel's tcp_info has."""
    role = roles[port]
    accepted = [one for one in sockets if one.base.port == port]
    ends = {"accepted": accepted}
    if role in ("input", "output"):
        ends["connecting"] = [one for one in sockets if one.base.port not in roles and one.base.peer_port == port]
    both = [one.base for part in ends.values() for one in part]
    queued = [one for one in both if one.inode or one.state in (ESTABLISHED, CLOSE_WAIT)]
    return {
        "port": port,
        "role": role,
        "states": _states(accepted),
        "receive_bytes": sum(one.receive for one in queued),
        "send_bytes": sum(one.send for one in queued),
        "unaccepted": sum(not one.base.inode and one.base.state in (ESTABLISHED, CLOSE_WAIT) for one in accepted),
        "close_wait_owned": sum(one.base.state == CLOSE_WAIT and one.base.inode != 0 for one in accepted),
        "close_wait_oldest": 0.0,
        "limit": None,
        "ends": {name: _end(part, fields, idle_ms) for name, part in ends.items()},
    }


def _states(sockets: Sequence[TcpSocket]) -> dict[str, int]:
    counts = Counter(one.base.state for one in sockets)
    return {name: counts[number] for number, name in STATES.items()}


def _end(sockets: Sequence[TcpSocket], fields: Mapping[str, int], idle_ms: int) -> dict[str, Any]:
    owned = [one for one in sockets if one.base.inode]
    return {
        "states": _states(sockets),
        "receive_max": max((one.base.receive for one in owned), default=0),
        "send_max": max((one.base.send for one in owned), default=0),
        "receive_stuck": 0,
        "send_stuck": 0,
        "zero_window": sum(_window_is_closed(one) for one in owned),
        "detail": _detail(sockets, fields, idle_ms),
    }


def _window_is_closed(one: TcpSocket) -> bool:
    known = one.info or {}
    return one.timer == 4 or (known.get("snd_wnd", 1) == 0 and known["notsent_bytes"] > 0)


def _detail(sockets: Sequence[TcpSocket], fields: Mapping[str, int], idle_ms: int) -> dict[str, Any]:
    known = [one for one in sockets if one.info is not None]
    established = [one for one in sockets if one.base.state == ESTABLISHED]
    rtts = [one.info["rtt"] for one in established if one.info is not None]

    held = [one for one in sockets if one.base.inode or one.base.state in (ESTABLISHED, CLOSE_WAIT)]  # no orphans

    def total(name: str, of: Sequence[TcpSocket] = known) -> int:
        return sum(one.info[name] for one in of if one.info is not None)

    waiting = [one.info["last_data_recv"] for one in known if one.info and _is_unanswered(one, one.info)]
    answerable = [one for one in known if one.base.inode and one.info and _is_unanswered(one, one.info)]
    never = sum(one.info["bytes_sent"] == 0 for one in answerable if one.info)
    sent = [one.info["last_data_sent"] for one in known if one.info and one.info.get("bytes_sent")]
    rates = [one.info["delivery_rate"] for one in held if one.info and _is_held_back(one.info)]
    overdue = sum(_is_overdue(one, one.info, idle_ms) for one in established if one.base.inode and one.info)
    found: dict[str, tuple[str, Any]] = {
        "retransmits": ("total_retrans", lambda: total("total_retrans")),
        "receiver_limited": ("rwnd_limited", lambda: total("rwnd_limited") / 1e6),
        "buffer_limited": ("sndbuf_limited", lambda: total("sndbuf_limited") / 1e6),
        "unacked": ("unacked", lambda: total("unacked", held)),
        "unsent": ("notsent_bytes", lambda: total("notsent_bytes", held)),
        "network_limited": ("delivery_rate", lambda: len(rates)),
        "delivery_min": ("delivery_rate", lambda: min(rates, default=None)),
        "delivery_median": ("delivery_rate", lambda: statistics.median(rates) if rates else None),
        "unanswered": ("bytes_sent", lambda: len(waiting)),
        "unanswered_oldest": ("bytes_sent", lambda: max(waiting, default=0) / 1000),
        "never_answered": ("bytes_sent", lambda: never),
        "silent": ("bytes_sent", lambda: min(sent) / 1000 if min(sent, default=NEVER_SENT) < NEVER_SENT else None),
        "overdue": ("bytes_sent", lambda: overdue),
    }
    return {
        "receive_memory": sum(one.memory[0] for one in held if one.memory),
        "send_memory": sum(one.memory[5] for one in held if one.memory),
        "rtt_mean": sum(rtts) / len(established) / 1e6 if established else None,
        "rtt_max": max(rtts, default=0) / 1e6 if established else None,
        **{name: compute() if needed in fields else None for name, (needed, compute) in found.items()},
    }


def _is_unanswered(one: TcpSocket, known: Mapping[str, int]) -> bool:
    if one.base.state != ESTABLISHED or "bytes_sent" not in known or not known["bytes_received"]:
        return False
    return known["bytes_sent"] == 0 or known["last_data_recv"] < known["last_data_sent"]


def _is_overdue(one: TcpSocket, known: Mapping[str, int], idle_ms: int) -> bool:
    if idle_ms == NEVER_SENT or one.base.send or not known.get("bytes_sent"):
        return False
    return known["last_data_sent"] > idle_ms and known["last_data_recv"] > idle_ms


def _is_held_back(known: Mapping[str, int]) -> bool:
    sending = known["unacked"] > 0 or known.get("notsent_bytes", 0) > 0
    return sending and not known["app_limited"] & 1 and known.get("delivery_rate", 0) > 0
