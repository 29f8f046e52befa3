"""Only the rows decide whether a sum fits its type: not how they are cut, split or ordered."""

import datetime as dt
import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import ErrorCode, UserError
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import columns_to_frame
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob

LONG = 2**63
DIGITS = 10**38 - 1
AT = dt.datetime(2024, 1, 1)  # noqa: DTZ001 (event times have no zone here)


def plan_for(kind: Any) -> AggregatePlan:
    stream = pen.StreamSchema(pa.schema([("key", pa.int64()), ("x", kind)]))
    return compile_aggregates("s", {"total": pen.sum("x")}, stream)


def partials_of(plan: AggregatePlan, kind: Any, values: Sequence[Any], key: int) -> Any:
    rows = pa.record_batch(
        [pa.array([key] * len(values), pa.int64()), pa.array(values, kind)], ["key", "x"]
    )
    return plan.partials_of(columns_to_frame([rows], ["key", "x"]), ["key"])


def total_of(kind: Any, pieces: Sequence[Sequence[Any]], *, key: int = 0) -> Any:
    """Return the sum of values that come in pieces, merged as windows and as state do it."""
    plan = plan_for(kind)
    parts = [partials_of(plan, kind, piece, key) for piece in pieces if piece]
    at_once = plan.merge(pl.concat(parts), ["key"])
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = plan.merge_pairs(part, one_by_one).with_columns(at_once["key"])
    found: list[Any] = []
    for merged in (at_once, one_by_one):
        column: Any = plan.results_of(merged, ()).to_arrow().column("total")
        found.append(column.cast(plan.results[0].type)[0].as_py())
    assert found[0] == found[1]
    return found[0]


def cuts_of(values: Sequence[Any]) -> list[list[Sequence[Any]]]:
    """Return all ways to cut values into consecutive pieces."""
    found = []
    for bounds in itertools.product([False, True], repeat=len(values) - 1):
        pieces: list[list[Any]] = [[values[0]]]
        for value, is_cut in zip(values[1:], bounds, strict=True):
            if is_cut:
                pieces.append([])
            pieces[-1].append(value)
        found.append(pieces)
    return found  # type: ignore[return-value]


CASES = [
    (pa.int64(), [LONG - 1, 1, -5], LONG - 5),
    (pa.int64(), [-LONG, -LONG, LONG - 1, LONG - 1], -2),
    (pa.int32(), [2**31 - 1] * 3, 3 * (2**31 - 1)),
    (pa.uint64(), [2**64 - 1, 0], 2**64 - 1),
    (pa.decimal128(38, 0), [DIGITS, DIGITS, -DIGITS], DIGITS),
    (pa.decimal128(38, 2), [-DIGITS, -DIGITS, DIGITS], -DIGITS),
    (pa.decimal128(38, 38), [DIGITS, 1, -1], DIGITS),
    (pa.decimal128(38, 0), [99999950 * 10**30, 5 * 10**30], 99999955 * 10**30),
    (pa.decimal128(10, 2), [10**10 - 1] * 4, 4 * (10**10 - 1)),
    (pa.decimal128(20, 0), [-1, 10**20 - 1], 10**20 - 2),
]


def in_units(kind: Any, value: int) -> Any:
    """Return a value given in units of the last digit of its type."""
    if not pa.types.is_decimal(kind):
        return value
    return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -kind.scale))


@pytest.mark.parametrize(("kind", "values", "total"), CASES)
@pytest.mark.parametrize("key", [0, 10**15])
def test_a_sum_that_fits_is_the_same_however_it_is_cut(
    kind: Any, values: list[int], total: int, key: int
) -> None:
    rows = [in_units(kind, value) for value in values]
    for pieces in cuts_of(rows):
        assert total_of(kind, pieces, key=key) == in_units(kind, total)


def test_durations_are_added_up_as_exactly() -> None:
    plan = plan_for(pa.duration("us"))
    parts = [
        partials_of(plan, pa.duration("us"), [value], 0) for value in (LONG - 1, 1, -5)
    ]
    merged = plan.merge(pl.concat(parts), ["key"])
    (total,) = plan.results_of(merged, ()).to_arrow().column("total").cast(pa.int64())
    assert total.as_py() == LONG - 5


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [LONG - 1, 1]),
        (pa.int64(), [-LONG, -1]),
        (pa.uint64(), [2**64 - 1, 1]),
        (pa.decimal128(38, 0), [DIGITS, 1]),
        (pa.decimal128(38, 5), [-DIGITS, -DIGITS, -DIGITS]),
        (pa.decimal128(38, 0), [DIGITS] * 40),
    ],
)
def test_a_sum_that_does_not_fit_is_refused_however_it_is_cut(
    kind: Any, values: list[int]
) -> None:
    rows = [in_units(kind, value) for value in values]
    for pieces in ([rows], [[row] for row in rows]):
        with pytest.raises(UserError, match="does not fit its type") as caught:
            total_of(kind, pieces)
        assert caught.value.code is ErrorCode.VALUE_OUT_OF_RANGE
        assert "total=sum(x) of step 's'" in caught.value.message
        assert "carry" not in caught.value.message  # a column that no user knows


def test_nulls_and_no_values_have_no_sum() -> None:
    for kind in (pa.int64(), pa.decimal128(38, 3), pa.duration("ms")):
        assert total_of(kind, [[None, None], [None]]) is None
    assert total_of(pa.int64(), [[None, 3], [None], [4]]) == 7


SIGNED = st.integers(-LONG, LONG - 1) | st.sampled_from([-LONG, LONG - 1, 1, -1, 0])
LARGE = st.integers(-DIGITS, DIGITS) | st.sampled_from([-DIGITS, DIGITS, 10**19, -1])


@given(
    st.sampled_from(["int64", "uint64", "decimal"]),
    st.lists(st.lists(SIGNED | LARGE, min_size=1, max_size=4), min_size=1, max_size=5),
)
def test_a_sum_is_that_of_python_or_does_not_fit(
    kind: str, pieces: list[list[int]]
) -> None:
    types = {
        "int64": (pa.int64(), -LONG, LONG - 1),
        "uint64": (pa.uint64(), 0, 2**64 - 1),
        "decimal": (pa.decimal128(38, 7), -DIGITS, DIGITS),
    }
    data_type, least, greatest = types[kind]
    pieces = [[min(max(n, least), greatest) for n in piece] for piece in pieces]
    total = sum(n for piece in pieces for n in piece)
    rows = [[in_units(data_type, n) for n in piece] for piece in pieces]
    if least <= total <= greatest:
        assert total_of(data_type, rows) == in_units(data_type, total)
    else:
        with pytest.raises(UserError, match="does not fit its type"):
            total_of(data_type, rows)


@pytest.mark.parametrize("window", [pen.tumbling("1h"), pen.session("1h")])
@pytest.mark.parametrize("rows_per_epoch", [1, 3])
@pytest.mark.parametrize("splits", [1, 3])
def test_neither_epochs_nor_splits_decide_whether_the_sum_of_a_window_fits(
    window: Any, rows_per_epoch: int, splits: int
) -> None:
    out = pen.list_sink(f"exact-{type(window).__name__}-{rows_per_epoch}-{splits}")
    rows = [{"at": AT, "x": x} for x in (LONG - 1, 1, -5)]
    pipeline = pen.Pipeline("p", parallelism=2)
    read = pipeline.read("rows", pen.list_source(rows, splits=splits), event_time="at")
    read.window("w", window).aggregate(total=pen.sum("x")).write("out", out)
    budget = SourceBudget(rows=rows_per_epoch)
    settings = DriverSettings(budget=budget, adapts_budget=False)
    LocalJob(pipeline, settings=settings).run()
    assert [row["total"] for row in out.rows()] == [LONG - 5]
