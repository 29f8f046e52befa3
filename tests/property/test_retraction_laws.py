"""Laws of aggregates over changelogs: after each epoch they are those of the table as it is."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.aggregated_rows import Row, fold
from tests.builders.lives import LIVES, Life, a_job_of, after_each_epoch, live
from tests.builders.profile import by_profile
from tests.unit.operators.aggregates.test_against_duckdb import BIG, FIRST, is_same
from tests.unit.operators.aggregates.test_against_duckdb import CASES as OTHERS

JOBS = by_profile(default=12, ci=25, nightly=200)
"""How many whole jobs the property runs, by profile."""
_COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "k": pa.int32(),
    "i": pa.int32(),
    "x": pa.float64(),
    "y": pa.float64(),
    "d": pa.decimal128(38, 2),
    "b": pa.bool_(),
    "t": pa.string(),
    "seen": pa.timestamp("us"),
    "gone": pa.bool_(),
}
SCHEMA = pa.schema(_COLUMNS)
HALVES = st.integers(-8, 8).map(lambda n: n / 2)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 9),
            "k": st.none() | st.integers(0, 3),
            "i": st.none() | st.integers(15, 25),
            "x": st.none() | HALVES,
            "y": st.none() | HALVES,
            "d": st.none() | st.integers(-400, 400).map(lambda n: Decimal(n) / 100),
            "b": st.none() | st.booleans(),
            "t": st.none() | st.sampled_from(["", "a", "b", "ä", "zz"]),
            "seen": st.integers(0, 20).map(lambda n: FIRST + timedelta(seconds=n)),
            "gone": st.integers(0, 4).map(lambda n: n == 0),
        }
    ),
    max_size=40,
)


def spread(rows: pl.DataFrame) -> int | None:
    """Return what a function of a user may compute of rows, nulls included."""
    return rows.height + rows["i"].null_count()


class Squares(pen.Aggregate):
    """A user's aggregate that takes rows out by arithmetic."""

    def partial(self) -> dict[str, pl.Expr]:
        return {"squares": (pl.col("i").cast(pl.Int64) ** 2).sum()}

    def merge(self, squares: pl.Expr) -> dict[str, pl.Expr]:
        return {"squares": squares.sum()}

    def unmerge(self, partials: Any, removed: Any) -> dict[str, pl.Expr]:
        return {"squares": partials["squares"] - removed["squares"]}

    def final(self, squares: pl.Expr) -> pl.Expr:
        return squares


class Length(pen.Aggregate):
    """A user's aggregate that cannot take rows out: what it reads is kept."""

    def partial(self) -> dict[str, pl.Expr]:
        return {"length": pl.col("t").str.len_bytes().max()}

    def merge(self, length: pl.Expr) -> dict[str, pl.Expr]:
        return {"length": length.max()}

    def final(self, length: pl.Expr) -> pl.Expr:
        return length.cast(pl.Int64)


ARITHMETIC: dict[str, tuple[pen.Aggregate, str]] = {
    "n": (pen.count(), "count(*)"),
    "n_big": (pen.count(where=BIG), "count(*) FILTER (i > 20)"),
    "texts": (pen.count("t"), "count(t)"),
    "sum_i": (pen.sum("i"), "sum(i)::BIGINT"),
    "sum_x": (pen.sum("x", where=BIG), "sum(x) FILTER (i > 20)"),
    "sum_d": (pen.sum("d"), "sum(d)"),
    "avg_i": (pen.avg("i"), "avg(i)"),
    "avg_x": (pen.avg("x"), "avg(x)"),
    "squares": (Squares(), "coalesce(sum(i::BIGINT * i), 0)::BIGINT"),
}
KEPT: dict[str, tuple[pen.Aggregate, str]] = {
    "min_x": (pen.min("x"), "min(x)"),
    "max_x": (pen.max("x"), "max(x)"),
    "max_t": (pen.max("t", where=BIG), "max(t) FILTER (i > 20)"),
    "min_k": (pen.min("k"), "min(k)"),
    "different": (pen.count_distinct("i"), "count(DISTINCT i)"),
    "different_big": (
        pen.count_distinct("t", where=BIG),
        "count(DISTINCT t) FILTER (i > 20)",
    ),
    "first": (pen.first("t"), "first(t ORDER BY seen, t) FILTER (t NOTNULL)"),
    "spread": (
        pen.aggregate_rows(spread, returns=pa.int64(), columns=["i"]),
        "count(*) + count(*) FILTER (i IS NULL)",
    ),
    "length": (Length(), "max(strlen(t))"),
}
# Here instants are not unique: ties are the others' matter.
ALL = {
    **ARITHMETIC,
    **KEPT,
    **{name: case for name, case in OTHERS.items() if not name.startswith("unique")},
}


def expected(rows: Sequence[Row], cases: dict[str, Any], *, by: str) -> dict[Any, Row]:
    """Return what SQL computes of the table."""
    table = pa.Table.from_pylist(list(rows), SCHEMA)
    computed = ", ".join(f"{sql} AS {name}" for name, (_, sql) in cases.items())
    with duckdb.connect() as connection:
        connection.register("rows", table)
        groups = connection.table("rows").aggregate(f"{by} AS k, {computed}", by)
        found = groups.to_arrow_table().to_pylist()
    return {(row.pop("k"),): row for row in found}


def check(
    came: Sequence[Row], out: Sequence[Row], cases: dict[str, Any], *, is_keyed: bool
) -> None:
    """Compare results with those that SQL computes of the table that the changes come to."""
    table = fold(came, ["id"]).values()
    wanted = expected(list(table), cases, by="k" if is_keyed else "coalesce(k, 0) * 0")
    found = fold(out, ["k"] if is_keyed else [])
    if not is_keyed:
        found = dict(zip([(0,)], found.values(), strict=False))
    assert found.keys() == wanted.keys(), (found.keys(), wanted.keys())
    wrong = {
        (key, name): (found[key][name], value)
        for key, row in wanted.items()
        for name, value in row.items()
        if not is_same(found[key][name], value)
        # What would divide by a variance of zero is null here, as in Postgres.
        and not (name.startswith(("corr", "regr")) and value != value)  # noqa: PLR0124
    }
    assert wrong == {}, wrong


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    lives=LIVES,
    rows_per_epoch=st.integers(3, 20),
    cases=st.sampled_from([ARITHMETIC, KEPT, ALL]),
    is_table=st.booleans(),
    is_keyed=st.booleans(),
)
def test_after_each_epoch_results_are_those_of_the_table_as_it_is(
    rows: list[Row],
    lives: list[Life],
    rows_per_epoch: int,
    cases: dict[str, Any],
    *,
    is_table: bool,
    is_keyed: bool,
) -> None:
    pipeline = pen.Pipeline("totals", parallelism=2)
    source = pen.list_source(list(rows), schema=SCHEMA)
    stream = pipeline.read("rows", source, event_time="seen", watermark_delay="1m")
    if is_table:
        table = stream.drop("gone").to_table("table", key="id")
    else:
        table = stream.from_upserts("table", key="id", deleted="gone")
    came, out = (pen.list_sink(f"{name}-{new_token()}") for name in ("in", "out"))
    table.write("in", came)
    aggregates = {name: aggregate for name, (aggregate, _) in cases.items()}
    # A group is what a row may leave for another one.
    some = table.key_by("k") if is_keyed else table
    some.aggregate("totals", **aggregates).write("out", out)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    for changes, results in after_each_epoch(came, out):
        check(changes, results, cases, is_keyed=is_keyed)
