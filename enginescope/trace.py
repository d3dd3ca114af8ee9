"""``enginescope trace``: a request's waterfall in the terminal, from the records in shared memory alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from telemetry.layout import API
from telemetry.records import Repeats, RequestRecord
from telemetry.scoreboard import PageError, Reader, pages
from telemetry.stages import OUTPUT_RECEIVE, OUTPUT_SEND, REPEATED_STAGES, ROUTES, STAGES, RequestFlag, Stage, Stamp

_OTHER_COLUMNS = 67
_MIN_BAR = 12


class TraceError(Exception):
    """There is nothing to show; the message is one sentence."""


def read_records(directory: Path) -> list[RequestRecord]:
    """The request records of every API page, dead ones too, in the order the requests ended.

    Raises:
        TraceError: no page, or no request yet.
    """
    records: list[RequestRecord] = []
    readable = 0
    for path in pages(directory):
        try:
            reader = Reader(path)
        except PageError:
            continue
        if reader.layout is API:
            readable += 1
            records += [RequestRecord.unpack(payload) for payload in reader.ring().drain()]
        reader.close()
    if not readable:
        raise TraceError(f"no engine has a page in {directory}: is it running, and is this its runtime directory?")
    if not records:
        raise TraceError("the engine has not finished a request yet")
    return sorted(records, key=lambda record: record.stamps[Stamp.HTTP_ENDED])


def choose(records: Iterable[RequestRecord], wanted: str) -> RequestRecord:
    """``last``, ``slow`` (the longest), or the one whose trace or request id begins or ends with ``wanted``.

    Raises:
        TraceError: none, or several.
    """
    candidates = list(records)
    if wanted == "last":
        return candidates[-1]
    if wanted == "slow":
        return max(candidates, key=_duration_ns)
    found = [record for record in candidates if _matches(record, wanted.lower())]
    if len(found) != 1:
        word = "no request" if not found else f"{len(found)} requests"
        raise TraceError(f"{word} among the last {len(candidates)} match {wanted!r}: give a trace id or request id")
    return found[0]


def _matches(record: RequestRecord, wanted: str) -> bool:
    return record.trace_id.hex().startswith(wanted) or record.request_id.endswith(wanted)


def _duration_ns(record: RequestRecord) -> int:
    return record.stamps[Stamp.HTTP_ENDED] - record.stamps[Stamp.HTTP_STARTED]


def waterfall(record: RequestRecord, width: int) -> Table:
    """The server span and its stages as bars over the request's duration, for a terminal of ``width`` columns."""
    chat, streamed = bool(record.flags & RequestFlag.CHAT), bool(record.flags & RequestFlag.STREAM)
    title = (
        f"{record.request_id or 'request'}  POST {ROUTES[chat]}{' (stream)' if streamed else ''}  "
        f"{record.status}  {record.prompt_tokens} -> {record.output_tokens} tokens\ntrace {record.trace_id.hex()}"
    )
    bar = max(width - _OTHER_COLUMNS, _MIN_BAR)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, smallest in (("stage", 25), ("process", 7)):
        table.add_column(name, no_wrap=True, min_width=smallest)
    for name in ("start ms", "ms"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    table.add_column("", no_wrap=True, width=bar)
    table.add_column("repeats, max", no_wrap=True, min_width=14)
    whole = Stage(f"POST {ROUTES[chat]}", Stamp.HTTP_STARTED, Stamp.HTTP_ENDED, "api")
    _add_row(table, record, whole, bar, whole.name)
    for stage in STAGES:
        _add_row(table, record, stage, bar, f"  {stage.name}")
    return table


def _repeats(record: RequestRecord, stage: Stage) -> Repeats | None:
    if stage not in REPEATED_STAGES:
        return None
    return {OUTPUT_SEND: record.output_send, OUTPUT_RECEIVE: record.output_receive}.get(stage, record.forward)


def _add_row(table: Table, record: RequestRecord, stage: Stage, width: int, name: str) -> None:
    start, end = record.stamps[stage.start], record.stamps[stage.end]
    if not start or not end:
        table.add_row(name, stage.process, "", "", "not reached", "")
        return
    zero, total = record.stamps[Stamp.HTTP_STARTED], max(_duration_ns(record), 1)
    first = min((start - zero) * width // total, width - 1)
    length = max(round((end - start) * width / total), 1)
    bar = Text(" " * first).append("█" * min(length, width - first), style="cyan")
    repeats = _repeats(record, stage)
    note = f"{repeats.count}x {repeats.max_ns / 1e6:.2f} ms" if repeats and repeats.count else ""
    table.add_row(name, stage.process, f"{(start - zero) / 1e6:.2f}", f"{(end - start) / 1e6:.2f}", bar, note)
