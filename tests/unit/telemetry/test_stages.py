from hypothesis import given
from hypothesis import strategies as st

from telemetry.stages import CORE_STAMPS, STAGES, STAMP_COUNT, Stamp, clamp

stamp_lists = st.lists(st.integers(0, 100), min_size=STAMP_COUNT, max_size=STAMP_COUNT)


def reached(stamps: list[int]) -> list[tuple[int, int]]:
    return [(stamps[s.start], stamps[s.end]) for s in STAGES if stamps[s.start] and stamps[s.end]]


@given(stamp_lists)
def test_clamped_stamps_can_be_drawn(stamps: list[int]) -> None:
    stamps[Stamp.HTTP_STARTED], stamps[Stamp.HTTP_ENDED] = 1, 90
    clamp(stamps)
    spans = reached(stamps)
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)
    assert all(1 <= start <= end <= 90 for start, end in spans)


@given(stamp_lists)
def test_clamping_is_counted_and_settles(stamps: list[int]) -> None:
    stamps[Stamp.HTTP_STARTED], stamps[Stamp.HTTP_ENDED] = 1, 90
    before = list(stamps)
    moved = clamp(stamps)
    assert moved >= sum(a != b for a, b in zip(before, stamps, strict=True))
    assert clamp(stamps) == 0


@given(stamp_lists)
def test_unreached_stamps_stay_unreached(stamps: list[int]) -> None:
    stamps[Stamp.HTTP_STARTED], stamps[Stamp.HTTP_ENDED] = 1, 90
    missing = [index for index, value in enumerate(stamps) if value == 0]
    clamp(stamps)
    assert all(stamps[index] == 0 for index in missing)


def test_ordered_stamps_are_left_alone() -> None:
    stamps = [100 + index for index in range(STAMP_COUNT)]
    stamps[Stamp.LAST_SAMPLED] = stamps[Stamp.OUTPUT_LAST_HANDED] = 111  # streaming: these overlap
    assert clamp(stamps) == 0


def test_every_stage_has_its_own_span_and_the_core_its_stamps() -> None:
    assert len({stage.span_name for stage in STAGES}) == 6
    assert {stage.process for stage in STAGES} == {"api", "core"}
    assert set(CORE_STAMPS) == {Stamp.INPUT_QUEUED, Stamp.SCHEDULED, Stamp.FIRST_SAMPLED, Stamp.LAST_SAMPLED}
