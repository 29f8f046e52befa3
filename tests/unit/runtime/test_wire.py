import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import Token
from penstock.core.watermark import IDLE, MAX_EVENT_TIME, MAX_MICROS, EventTime, Watermark
from penstock.errors import InternalError, UserError
from penstock.runtime.task.wire import (
    BarrierPayload,
    Header,
    cut,
    decode_barrier,
    decode_batch,
    decode_header,
    encode_barrier,
    encode_batch,
    encode_header,
)
from tests.builders.scripted import SCHEMA, rows

small = st.integers(-1, 1 << 30)
tokens = st.binary(min_size=16, max_size=16).map(lambda data: Token(data.hex()))
headers = st.builds(
    Header,
    *[small] * 5,
    tokens,
    st.integers(0, 1 << 40),
    st.binary(max_size=20),
)
watermarks: st.SearchStrategy[Watermark | None] = st.one_of(
    st.none(),
    st.just(IDLE),
    st.integers(-(1 << 63), (1 << 63) - 1).map(EventTime),
)


@given(headers)
def test_a_header_survives(header: Header) -> None:
    assert decode_header(encode_header(header)) == header


@given(st.integers(0, 1 << 40), st.booleans(), watermarks)
def test_a_barrier_survives(
    count: int, is_aborted: bool, watermark: Watermark | None
) -> None:
    barrier = BarrierPayload(count, is_aborted, watermark)
    assert decode_barrier(encode_barrier(barrier)) == barrier


def test_the_end_of_data_survives_as_such() -> None:
    barrier = BarrierPayload(0, is_aborted=False, watermark=MAX_EVENT_TIME)
    assert decode_barrier(encode_barrier(barrier)).watermark == MAX_EVENT_TIME


@pytest.mark.parametrize("reached", [None, -(1 << 63), -1, 0, 7])
def test_an_end_tells_how_far_event_time_came_on_the_wire_too(reached: int | None) -> None:
    barrier = BarrierPayload(0, is_aborted=False, watermark=EventTime(MAX_MICROS, reached))
    end = decode_barrier(encode_barrier(barrier)).watermark
    assert isinstance(end, EventTime)
    assert (end, end.reached_micros) == (MAX_EVENT_TIME, reached)


@pytest.mark.parametrize(
    "batch",
    [
        rows(1, 2, 3),
        rows(),
        rows(*range(10)).slice(3, 4),
        pa.record_batch({"x": pa.array(["a", None, "a"]).dictionary_encode()}),
        pa.record_batch({"x": pa.array([["a"], None]).cast(pa.list_(pa.string()))}),
        pa.RecordBatch.from_arrays(
            [pa.array(["a", "b"]).dictionary_encode()],
            schema=pa.schema({"x": pa.dictionary(pa.int32(), pa.string())}),
        ),
    ],
    ids=["plain", "empty", "slice", "dictionary", "list", "typed-dictionary"],
)
def test_a_batch_survives(batch: pa.RecordBatch) -> None:
    assert decode_batch(encode_batch(batch), batch.schema).equals(batch)


def test_a_slice_is_sent_without_the_rows_around_it() -> None:
    whole = rows(*range(10_000))
    assert len(bytes(encode_batch(whole.slice(0, 10)))) < 2_000


@pytest.mark.parametrize("payload", [b"", b"nonsense", b"\xff" * 64])
def test_bytes_that_are_no_batch_are_our_own_bug(payload: bytes) -> None:
    with pytest.raises(InternalError, match="bytes from an exchange are not a batch"):
        decode_batch(payload, SCHEMA)


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=30), st.integers(64, 4_096))
def test_cut_pieces_are_the_rows_in_order_and_of_about_the_wanted_size(
    sizes: list[int], target: int
) -> None:
    batch = pa.record_batch({"text": ["x" * size for size in sizes]})
    pieces = cut(batch, target)
    assert pa.Table.from_batches(pieces).to_pylist() == batch.to_pylist()
    for piece in pieces:
        assert piece.num_rows == 1 or piece.nbytes <= 2 * target


def test_a_small_batch_is_not_copied() -> None:
    batch = rows(1, 2)
    assert cut(batch)[0] is batch


def test_a_single_row_that_is_too_large_is_refused_with_advice() -> None:
    huge = pa.record_batch({"x": pa.array([np.zeros(2_000, np.uint8).tobytes()])})
    with pytest.raises(UserError, match="store the large value elsewhere"):
        cut(huge, 100, 1_000)
    with pytest.raises(UserError, match="a single row has"):
        cut(pa.record_batch({"x": [b"", b"y" * 5_000, b""]}), 100, 1_000)


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_compressed_batch_is_smaller_and_the_same(*, is_dictionary: bool) -> None:
    column = pa.array(["penstock"] * 10_000)
    columns = [column.dictionary_encode() if is_dictionary else column]
    batch = pa.RecordBatch.from_arrays(columns, names=["word"])
    plain, packed = encode_batch(batch), encode_batch(batch, "lz4")
    assert memoryview(packed).nbytes < memoryview(plain).nbytes / 2
    assert decode_batch(packed, batch.schema).equals(batch)
    assert decode_batch(plain, batch.schema).equals(batch)
