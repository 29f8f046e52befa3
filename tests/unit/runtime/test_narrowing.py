"""Narrowing: what arrives is what was sent, in fewer bytes where it can be."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.task.wire import (
    AS_IT_IS,
    decode_batch,
    encode_batch,
    narrow,
    narrowed_schema,
    widen,
)

ROWS = 300
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
KINDS = (
    pa.int64(),
    pa.timestamp("us"),
    pa.timestamp("ns", tz="UTC"),
    pa.duration("ms"),
    pa.time64("us"),
    pa.int32(),
    pa.uint64(),
)


def sent(batch: pa.RecordBatch, compression: str | None = None) -> pa.RecordBatch:
    """The batch as the other side of an exchange sees it."""
    narrowed, layout = narrow(batch)
    payload = encode_batch(narrowed, compression)
    arrived = decode_batch(payload, narrowed_schema(batch.schema, layout))
    return widen(arrived, batch.schema, layout)


def a_batch(values: list[int | None], kind: pa.DataType) -> pa.RecordBatch:
    column: Any = pa.array(values, pa.int64())
    if kind == pa.int32():
        column = pa.array([None if v is None else v % 1000 for v in values], pa.int32())
    names: Any = pa.array([str(value) for value in values])
    schema = pa.schema([pa.field("n", kind), pa.field("s", pa.string())], {"about": "rows"})
    return pa.RecordBatch.from_arrays([column.view(kind), names], schema=schema)


@st.composite
def numbers(draw: st.DrawFn) -> list[int | None]:
    low = draw(st.integers(LOWEST, HIGHEST) | st.integers(-300, 300))
    span = draw(st.sampled_from([0, 1, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32]))
    high = min(low + span, HIGHEST)
    random = draw(st.randoms(use_true_random=False))
    found: list[int | None] = [random.randint(low, high) for _ in range(ROWS)]
    found[0], found[-1] = low, high
    for at in draw(st.lists(st.integers(0, ROWS - 1), max_size=ROWS // 10)):
        found[at] = None
    return found


@given(
    numbers(), st.sampled_from(KINDS), st.integers(0, 40), st.sampled_from([None, "lz4"])
)
def test_what_arrives_is_what_was_sent(
    values: list[int | None], kind: pa.DataType, start: int, compression: str | None
) -> None:
    batch = a_batch(values, kind).slice(start)
    arrived = sent(batch, compression)
    arrived.validate()
    assert arrived.equals(batch, check_metadata=True)


@pytest.mark.parametrize(
    ("low", "high", "width"),
    [
        (0, 255, 1),
        (0, 256, 2),
        (0, 65_536, 4),
        (0, (1 << 32) - 1, 4),
        (0, 1 << 32, 8),
        (-1, 254, 1),
        (HIGHEST - 10, HIGHEST, 1),
        (LOWEST, HIGHEST, 8),
    ],
)
def test_the_width_is_the_smallest_that_holds_all(low: int, high: int, width: int) -> None:
    values = [low + (high - low) * row // (ROWS - 1) for row in range(ROWS)]
    narrowed, _ = narrow(pa.record_batch({"n": pa.array(values, pa.int64())}))
    assert narrowed.column("n").type.bit_width == 8 * width


def test_ids_and_times_take_half_the_bytes() -> None:
    times = np.arange(50_000, dtype=np.int64) * 10 + 1_700_000_000_000_000
    batch = pa.record_batch(
        {"id": pa.array(times % 100_003), "at": pa.array(times, pa.timestamp("us"))}
    )
    narrowed, _ = narrow(batch)
    assert len(memoryview(encode_batch(narrowed))) < 0.51 * batch.nbytes


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"n": pa.array(range(10), pa.int64())}),
        pa.record_batch({"n": pa.array([None] * ROWS, pa.int64())}),
        pa.record_batch({"x": pa.array([0.5] * ROWS), "s": pa.array(["a"] * ROWS)}),
    ],
)
def test_what_gains_nothing_travels_as_it_is(batch: pa.RecordBatch) -> None:
    narrowed, layout = narrow(batch)
    assert layout == AS_IT_IS
    assert narrowed is batch
    assert sent(batch).equals(batch)


class Money(pa.ExtensionType):
    """A type of a user's own; Python cannot hash it."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "test.money")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> "Money":
        return cls()


def test_types_of_a_users_own_travel_beside_narrowed_columns() -> None:
    cents: Any = pa.array(range(ROWS), pa.int64())
    batch = pa.RecordBatch.from_arrays(
        [pa.ExtensionArray.from_storage(Money(), cents), cents], names=["price", "id"]
    )
    assert narrow(batch)[1] != AS_IT_IS
    assert sent(batch).equals(batch)
