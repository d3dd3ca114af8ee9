"""The pictures: what is drawn from given answers, without a server."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dashboards.model import Kind, Limit, Panel, Query, Unit, Word
from dashboards.preview import units
from dashboards.preview.answers import Answer, Moment, legend
from dashboards.preview.draw import draw
from dashboards.preview.picture import PictureError, photograph
from dashboards.preview.plot import COLOURS
from dashboards.preview.waterfall import slowest, waterfall
from dashboards.prometheus import Exemplar, Line

MOMENT = Moment(1000.0, 1100.0, [("TCPBacklogFull", 1050.0)])
RISING = Line({"port": "8000", "role": "http"}, [(1000.0 + step, float(step)) for step in range(0, 101, 10)])


def panel(kind: Kind = Kind.LINES, **changes: object) -> Panel:
    given: dict[str, object] = {"queries": (Query("up", "{{role}} {{port}}"),), "kind": kind, "unit": "short"}
    return Panel(id=1, title="T", says="S.", **(given | changes))  # type: ignore[arg-type]


def drawn(shown: Panel, *lines: Line, exemplars: tuple[Exemplar, ...] = ()) -> ET.Element:
    answers = [Answer(shown.queries[0], list(lines), list(exemplars))]
    return ET.fromstring(draw(shown, answers, MOMENT, 400, 200))


def texts(picture: ET.Element) -> list[str]:
    return [element.text or "" for element in picture.iter("text")]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"),
        (0.0000123, "s", "12.3 µs"),
        (0.9999, "s", "1 s"),
        (90, "s", "1.5 min"),
        (0.8, "percentunit", "80 %"),
        (2048, "bytes", "2 KiB"),
        (12, "Bps", "12 B/s"),
        (20000, "short", "20k"),
        (4.125, "reqps", "4.12 req/s"),
        (2048, "none", "2048"),
    ],
)
def test_numbers_are_written_for_people(value: float, unit: Unit, text: str) -> None:
    assert units.write(value, unit) == text


def test_ticks_of_bytes_are_round_in_their_own_multiples() -> None:
    assert units.ticks(1.4 * 2**20, "bytes") == [value * 2**20 for value in (0, 0.5, 1, 1.5)]


@pytest.mark.parametrize("top", [0.0003, 0.85, 1, 7, 2048, 19999])
def test_ticks_are_round_and_reach_the_top(top: float) -> None:
    found = units.ticks(top)
    assert found[0] == 0
    assert found[-1] >= top * 0.999
    assert 3 <= len(found) <= 6


def test_legends_take_labels_or_name_what_tells_series_apart() -> None:
    assert legend(Query("up", "{{role}} {{port}}, x"), {"role": "http"}) == "http , x"
    assert legend(Query("up"), {"__name__": "up", "engine": "e", "kind": "a", "role": "b"}) == "a, b"


def test_a_line_rises_from_the_left_below_to_the_right_above() -> None:
    picture = drawn(panel(limits=(Limit(80, "red"),)), RISING)
    (line,) = picture.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == len(RISING.points)
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    assert "http 8000  100" in texts(picture)
    limits = [one for one in picture.iter("line") if one.get("stroke") == COLOURS["red"]]
    assert len(limits) == 2  # the limit, and the alert's mark


def test_a_gap_is_left_open() -> None:
    gap = Line({}, [point for point in RISING.points if point[0] not in (1040.0, 1050.0, 1060.0)])
    assert len(list(drawn(panel(), gap).iter("polyline"))) == 2


def test_stacked_lines_lie_on_one_another() -> None:
    picture = drawn(panel(stacked=True), Line({"role": "a"}, RISING.points), Line({"role": "b"}, RISING.points))
    assert "200" in texts(picture)  # the axis reaches the sum
    assert len(list(picture.iter("polyline"))) == 2


def test_a_second_unit_has_an_axis_of_its_own() -> None:
    queries = (Query("a", "count"), Query("b", "age", unit="s"))
    answers = [Answer(queries[0], [RISING], []), Answer(queries[1], [Line({}, [(1000.0, 0.001), (1100.0, 0.002)])], [])]
    picture = ET.fromstring(draw(panel(queries=queries), answers, MOMENT, 400, 200))
    assert {"100", "2 ms"} <= set(texts(picture))


def test_states_have_words_and_colours() -> None:
    words = {0: Word("gone", "red"), 1: Word("there", "green")}
    line = Line({"port": "1", "role": "http"}, [(1000.0, 1.0), (1050.0, 0.0), (1100.0, 1.0)])
    picture = drawn(panel(Kind.STATES, words=words), line)
    assert [rect.get("fill") for rect in picture.iter("rect")] == [COLOURS["green"], COLOURS["red"], COLOURS["green"]]
    (number,) = (text for text in texts(drawn(panel(Kind.STAT, words=words), line)))
    assert number == "there"


def test_a_heatmap_shows_each_bucket_alone() -> None:
    below = [Line({"le": le}, [(1000.0, total), (1100.0, total)]) for le, total in (("0.1", 2), ("1", 5), ("+Inf", 5))]
    exemplar = Exemplar("ab" * 16, 0.5, 1050.0)
    picture = drawn(panel(Kind.HEATMAP, unit="s"), *below, exemplars=(exemplar,))
    cells = [rect for rect in picture.iter("rect") if rect.get("fill-opacity")]
    assert len(cells) == 4  # two buckets with observations, two moments
    assert {float(cell.attrib["x"]) for cell in cells} == {60}
    assert max(float(cell.attrib["fill-opacity"]) for cell in cells) == 1
    assert len([rect for rect in picture.iter("rect") if rect.get("transform")]) == 1
    assert {"100 ms", "1 s", "more"} == {text for text in texts(picture) if ":" not in text}


def test_a_table_has_what_is_there_now() -> None:
    ended = Line({"kind": "ended"}, [(1000.0, 1.0)])
    now = Line({"kind": "<now>"}, [(1100.0, 4096.0)])
    text = draw(panel(Kind.TABLE, queries=(Query("up"),)), [Answer(Query("up"), [ended, now], [])], MOMENT, 300, 100)
    assert re.findall("<td>(.*?)</td>", text) == ["&lt;now&gt;", "4.1k"]


def test_an_empty_panel_says_why() -> None:
    assert texts(drawn(panel())) == ["no data"]
    assert texts(drawn(panel(hardware="a GPU"))) == ["needs a GPU"]
    assert texts(drawn(panel(queries=(Query("up", optional="none while all is well"),)))) == ["none while all is well"]


def test_a_trace_is_drawn_from_its_spans() -> None:
    spans = [
        {"trace_id": "t", "parent_span_id": parent, "name": name, "start_ns": start, "end_ns": end, "attributes": {}}
        for name, parent, start, end in (("POST /v1", "", 0, 10**9), ("engine.forward", "s", 10**8, 5 * 10**8))
    ]
    picture = ET.fromstring(waterfall(spans, 600, 300))
    server, forward = picture.iter("rect")
    assert float(forward.attrib["width"]) == pytest.approx(0.4 * float(server.attrib["width"]), rel=0.01)
    assert {"engine.forward", "400 ms"} <= set(texts(picture))
    assert "no trace at hand" in waterfall([], 600, 300)


def test_the_slowest_requests_come_once_each() -> None:
    found = slowest([Exemplar("a", 1.0, 0.0), Exemplar("b", 3.0, 0.0), Exemplar("a", 2.0, 0.0)])
    assert [(one.trace_id, one.value) for one in found] == [("b", 3.0), ("a", 2.0)]


def test_without_a_browser_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PictureError, match="pictures need Chromium"):
        photograph(tmp_path / "page.html", tmp_path / "page.png", 100, 100)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_a_page_becomes_a_picture_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<body style='background:#00f'></body>")
    photograph(tmp_path / "page.html", tmp_path / "page.png", 640, 480)
    header = (tmp_path / "page.png").read_bytes()[:24]
    assert header[1:4] == b"PNG"
    assert (int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")) == (640, 480)
