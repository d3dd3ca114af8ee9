import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from telemetry.layout import API, RECORD_BYTES, RING_HEADER_BYTES, Layout
from telemetry.records import KernelSample, Repeats, RequestRecord, RingReader, RingWriter, StepRecord, unpack_stamps
from telemetry.stages import STAMP_COUNT

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
repeats = st.builds(Repeats, u32, u64, u64)
request_ids = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=24)
requests = st.builds(
    RequestRecord,
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=8, max_size=8),
    u16,
    u16,
    u32,
    u32,
    u32,
    u32,
    u32,
    st.lists(u64, min_size=STAMP_COUNT, max_size=STAMP_COUNT),
    repeats,
    repeats,
    repeats,
    request_ids,
)
members = st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
steps = st.builds(StepRecord, u64, u64, u64, u32, u32, st.lists(members, max_size=40))
samples = st.builds(KernelSample, u64, u32, u32, u64, u64, u64, u64, u32, u32)

SMALL = Layout(role="test", slots=("one",), ring_records=4)


def ring() -> tuple[bytearray, RingWriter, RingReader]:
    memory = bytearray(SMALL.size)
    view = memoryview(memory)
    return memory, RingWriter(view, SMALL), RingReader(view, SMALL)


@given(requests)
def test_request_round_trip(record: RequestRecord) -> None:
    assert unpack_stamps(record.pack()) == (record.trace_id, tuple(record.stamps))
    assert RequestRecord.unpack(record.pack()) == record


@given(steps)
def test_step_round_trip(record: StepRecord) -> None:
    parts = [StepRecord.unpack(payload) for payload in record.pack()]
    assert [member for part in parts for member in part.members] == record.members
    assert all((part.step, part.batch_size) == (record.step, record.batch_size) for part in parts)


@given(samples)
def test_kernel_sample_round_trip(sample: KernelSample) -> None:
    assert KernelSample.unpack(sample.pack()) == sample


@given(st.binary(min_size=244, max_size=244))
def test_any_payload_of_the_right_size_unpacks(payload: bytes) -> None:
    RequestRecord.unpack(payload)
    StepRecord.unpack(payload)
    KernelSample.unpack(payload)


def test_a_long_request_id_keeps_its_end() -> None:
    record = RequestRecord(bytes(16), bytes(8), bytes(8), 200, 0, 0, 0, 0, 0, 0, [0] * STAMP_COUNT)
    record.request_id = "chatcmpl-0123456789abcdef0123456789abcdef"
    assert RequestRecord.unpack(record.pack()).request_id == record.request_id[-24:]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_ring_gives_every_record_once_or_counts_it(bursts: list[int]) -> None:
    _, writer, reader = ring()
    written, seen = 0, []
    for burst in bursts:
        for _ in range(burst):
            writer.append(struct.pack("<Q", written))
            written += 1
        seen += [struct.unpack_from("<Q", payload)[0] for payload in reader.drain()]
    assert len(seen) + reader.lost == written
    assert all(a < b for a, b in pairwise(seen))


def test_a_limited_drain_goes_on_where_it_stopped() -> None:
    _, writer, reader = ring()
    for number in range(4):
        writer.append(bytes([number]))
    assert [p[0] for p in reader.drain(3)] == [0, 1, 2]
    assert [p[0] for p in reader.drain(3)] == [3]


def test_a_reader_can_start_where_another_stopped() -> None:
    memory, writer, reader = ring()
    for number in range(3):
        writer.append(bytes([number]))
    reader.drain(2)
    heir = RingReader(memoryview(memory), SMALL, reader.position)
    assert [p[0] for p in heir.drain()] == [2]
    assert heir.lost == 0


def test_a_half_written_record_is_dropped_and_counted() -> None:
    memory, writer, reader = ring()
    writer.append(b"whole")
    writer.append(b"torn")
    memory[SMALL.ring_offset + RING_HEADER_BYTES + RECORD_BYTES + 100] ^= 1
    assert [p.rstrip(b"\0") for p in reader.drain()] == [b"whole"]
    assert reader.lost == 1


def test_repeats_never_count_negative_time() -> None:
    repeated = Repeats()
    repeated.add(-5)
    repeated.add(7)
    assert repeated == Repeats(2, 7, 7)


def test_request_records_fit_the_api_page() -> None:
    assert API.size == API.ring_offset + RING_HEADER_BYTES + API.ring_records * RECORD_BYTES
