"""What is known of Arrow types: one answer per rule for every type, and exact microseconds."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.arrow_types import (
    have_same_values,
    is_bytes,
    is_held_by_polars,
    is_lossless,
    is_text,
    stored_type,
    to_micros,
    to_micros_within_reach,
)

CODES: Any = pa.dictionary(pa.int8(), pa.string())
PLAIN: list[Any] = [
    pa.null(),
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms")),
    *(pa.time64("us"), pa.time64("ns"), pa.month_day_nano_interval()),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "UTC"),
    *(pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(76)),
    pa.binary(4),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.list_(pa.int64(), 2),
]
"""Types whose values have one layout only."""
LAYOUTS: dict[str, list[Any]] = {
    "text": [pa.string(), pa.large_string(), pa.string_view()],
    "bytes": [pa.binary(), pa.large_binary(), pa.binary_view()],
    "lists": [pa.list_(pa.int64()), pa.large_list(pa.int64())],
}
ALL = [*PLAIN, *(kind for kinds in LAYOUTS.values() for kind in kinds)]


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_every_type_holds_its_own_values_and_those_of_its_layouts_only(kind: Any) -> None:
    same = next((kinds for kinds in LAYOUTS.values() if kind in kinds), [kind])
    zones = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    silent = [*same, *zones] if kind in zones else same
    assert {other for other in ALL if have_same_values(kind, other)} == set(same)
    expected = set(ALL) if pa.types.is_null(kind) else set(silent)
    assert {other for other in ALL if is_lossless(kind, other)} == expected


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_only_text_is_text_and_only_byte_strings_are_bytes(kind: Any) -> None:
    assert is_text(kind) == (kind in LAYOUTS["text"])
    assert is_bytes(kind) == (kind in LAYOUTS["bytes"])


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_what_is_stored_is_the_same_type_but_for_views(kind: Any) -> None:
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    assert stored_type(kind) == views.get(kind, kind)


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_polars_holds_all_but_wide_decimals_and_intervals(kind: Any) -> None:
    is_other = pa.types.is_decimal256(kind) or pa.types.is_interval(kind)
    assert is_held_by_polars(kind) == (not is_other)


def test_polars_holds_neither_negative_scales_nor_offsets_of_time() -> None:
    assert not is_held_by_polars(pa.decimal128(5, -2))
    assert not is_held_by_polars(pa.timestamp("us", "+05:30"))
    assert is_held_by_polars(pa.timestamp("us", "Asia/Kolkata"))


@pytest.mark.parametrize(
    ("found", "expected", "is_fine"),
    [
        (CODES, pa.large_string(), True),
        (pa.string(), CODES, False),
        (pa.list_(CODES), pa.large_list(pa.string()), True),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), False),
        (pa.struct([("a", CODES)]), pa.struct([("a", pa.string())]), True),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), False),
        (pa.struct([("a", pa.null())]), pa.struct([("a", pa.int8())]), True),
        (pa.timestamp("ms"), pa.timestamp("us"), False),
    ],
    ids=str,
)
def test_nested_values_become_others_silently_only_without_loss(
    found: Any, expected: Any, *, is_fine: bool
) -> None:
    assert is_lossless(found, expected) == is_fine


def instants(unit: str, *values: int | None) -> Any:
    return pa.array(values, pa.int64()).view(pa.timestamp(unit))


@pytest.mark.parametrize(
    ("unit", "value", "micros"),
    [
        ("s", -2, -2_000_000),
        ("ms", 3, 3_000),
        ("us", -(2**63), -(2**63)),
        ("ns", 1_999, 1),
        ("ns", -1, -1),
    ],
)
def test_instants_of_any_unit_are_rounded_down(unit: str, value: int, micros: int) -> None:
    for column in (instants(unit, value), pa.chunked_array([instants(unit, value)])):
        found = to_micros(column)
        assert found is not None
        assert found.tolist() == [micros]


@pytest.mark.parametrize("unit", ["s", "ms"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_instant_beyond_64_bits_is_refused_or_put_to_the_end(
    unit: str, sign: int
) -> None:
    per_unit = {"s": 1_000_000, "ms": 1_000}[unit]
    last = sign * ((2**63 - 1) // per_unit)
    assert to_micros(instants(unit, 0, last + sign)) is None
    exact = to_micros(instants(unit, 0, last))
    assert exact is not None
    assert exact.tolist() == [0, last * per_unit]
    for far in (last, last + sign):
        clipped = to_micros_within_reach(instants(unit, far))
        assert clipped.tolist() == [last * per_unit]


def test_an_end_of_something_is_rounded_up_if_asked() -> None:
    ends = instants("ns", 1, 1_000, -1)
    assert to_micros_within_reach(ends, rounds_up=True).tolist() == [1, 1, 0]
    assert to_micros_within_reach(ends).tolist() == [0, 1, -1]


def test_no_rows_and_rows_without_an_instant_have_microseconds_too() -> None:
    empty = to_micros(instants("s"))
    assert empty is not None
    assert empty.dtype == np.int64
    assert len(empty) == 0
    assert to_micros_within_reach(instants("us", None, 5)).tolist() == [0, 5]
