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

_BAR_WIDTH = 40


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


def waterfall(record: RequestRecord) -> Table:
    """The server span and its stages as bars over the request's duration."""
    chat, streamed = bool(record.flags & RequestFlag.CHAT), bool(record.flags & RequestFlag.STREAM)
    title = (
        f"{record.request_id or 'request'}  POST {ROUTES[chat]}{' (stream)' if streamed else ''}  "
        f"{record.status}  {record.prompt_tokens} -> {record.output_tokens} tokens\ntrace {record.trace_id.hex()}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("span", "process"):
        table.add_column(name, no_wrap=True)
    for name in ("start ms", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=_BAR_WIDTH)
    table.add_column("repeats", no_wrap=True)
    _add_row(table, record, f"POST {ROUTES[chat]}", "api", (Stamp.HTTP_STARTED, Stamp.HTTP_ENDED), None)
    for stage in STAGES:
        _add_row(
            table, record, f"  {stage.span_name}", stage.process, (stage.start, stage.end), _repeats(record, stage)
        )
    return table


def _repeats(record: RequestRecord, stage: Stage) -> Repeats | None:
    if stage not in REPEATED_STAGES:
        return None
    return {OUTPUT_SEND: record.output_send, OUTPUT_RECEIVE: record.output_receive}.get(stage, record.forward)


def _add_row(
    table: Table, record: RequestRecord, name: str, process: str, ends: tuple[Stamp, Stamp], repeats: Repeats | None
) -> None:
    start, end = record.stamps[ends[0]], record.stamps[ends[1]]
    if not start or not end:
        table.add_row(name, process, "-", "not reached", "", "")
        return
    zero, total = record.stamps[Stamp.HTTP_STARTED], max(_duration_ns(record), 1)
    bar = Text(" " * ((start - zero) * _BAR_WIDTH // total))
    bar.append("█" * max((end - start) * _BAR_WIDTH // total, 1), style="cyan")
    note = f"{repeats.count}x, longest {repeats.max_ns / 1e6:.2f} ms" if repeats and repeats.count else ""
    table.add_row(name, process, f"{(start - zero) / 1e6:.2f}", f"{(end - start) / 1e6:.2f}", bar, note)
