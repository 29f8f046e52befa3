"""Laws of changelogs: folded, they are what SQL makes of the folded input, whatever happened."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from tests.builders.lives import LIVES, Life, a_job_of, live
from tests.builders.profile import by_profile

JOBS = by_profile(default=8, ci=40, nightly=1_000)
"""How many whole jobs each property runs."""
_COLUMNS: dict[str, Any] = {
    "k": pa.string(),
    "v": pa.int64(),
    "x": pa.float64(),
    "gone": pa.bool_(),
}
SCHEMA = pa.schema(_COLUMNS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.none() | st.sampled_from("abcde"),
            "v": st.none() | st.integers(0, 6),
            "x": st.none() | st.sampled_from([0.5, 1.5, 2.5]),
            "gone": st.booleans(),
        }
    ),
    max_size=40,
)
Then = Callable[[pen.Stream], pen.Stream]
STEPS: Mapping[str, tuple[Then, str]] = {
    "as it is": (lambda table: table, "select k, v, x from t"),
    "filtered": (
        lambda table: table.filter(pl.col("v") % 2 == 0),
        "select k, v, x from t where v % 2 = 0",
    ),
    "fewer columns": (lambda table: table.select("k", "x"), "select k, x from t"),
    "computed": (
        lambda table: table.with_columns(x=pl.col("x") * 2, y=pl.col("v") + 1),
        "select k, v, x * 2 x, v + 1 y from t",
    ),
    "twice": (
        lambda table: table.filter(pl.col("v") > 1).union(
            table.filter(pl.col("x") > 1).select("k", "v", "x")
        ),
        "select k, v, x from t where v > 1 union all select k, v, x from t where x > 1",
    ),
    "through a function": (
        lambda table: table.filter(pl.col("v") > 1).map_batches(_without_halves),
        "select k, v, x from t where v > 1 and x is distinct from 0.5",
    ),
}


def _without_halves(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("x").ne_missing(0.5))


def counted(rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Return how often each row is there."""
    return Counter(tuple(sorted(row.items())) for row in rows)


def run_sql(sql: str, rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Return the rows that SQL makes of a table `t`."""
    with duckdb.connect() as connection:
        connection.register("t", pa.Table.from_pylist(list(rows), schema=SCHEMA))
        return counted(connection.sql(sql).arrow().read_all().to_pylist())


def folded(changes: Sequence[Row], step: str) -> Counter[tuple[Any, ...]]:
    """Return the table that changes lead to; those of a union are counted."""
    if step != "twice":
        table = fold(changes, ["k"])
        return counted([{"k": key, **row} for (key,), row in table.items()])
    signs: Counter[tuple[Any, ...]] = Counter()
    for change in changes:
        sign = {"insert": 1, "delete": -1}[change["change"]]
        row = {name: value for name, value in change.items() if name != "change"}
        signs[tuple(sorted(row.items()))] += sign
    assert min(signs.values(), default=0) >= 0
    return +signs


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@settings(max_examples=JOBS)
@given(rows=ROWS, lives=LIVES, rows_per_epoch=st.integers(1, 12), splits=st.integers(1, 3))
def test_a_table_by_an_order_depends_on_the_rows_alone(
    step: str, rows: list[Row], lives: list[Life], rows_per_epoch: int, splits: int
) -> None:
    then, sql = STEPS[step]
    pipeline, out = pen.Pipeline("tables", parallelism=2), pen.list_sink(new_token())
    stream = pipeline.read("rows", pen.list_source(rows, schema=SCHEMA, splits=splits))
    table = stream.select("k", "v", "x").to_table("latest", key="k", order_by="v")
    then(table).write("out", out)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    latest: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda row: [_rank(row["v"]), _rank(row["x"])]):
        latest[row["k"]] = row
    assert folded(out.rows(), step) == run_sql(sql, list(latest.values()))


def _rank(value: float | None) -> tuple[bool, float]:
    return value is not None, value or 0


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    lives=LIVES,
    rows_per_epoch=st.integers(1, 12),
    step=st.sampled_from(list(STEPS)),
)
def test_upserts_and_deletions_count_in_the_order_in_which_they_come(
    rows: list[Row], lives: list[Life], rows_per_epoch: int, step: str
) -> None:
    then, sql = STEPS[step]
    pipeline, out = pen.Pipeline("upserts", parallelism=2), pen.list_sink(new_token())
    stream = pipeline.read("rows", pen.list_source(rows, schema=SCHEMA))
    then(stream.from_upserts("latest", key="k", deleted="gone")).write("out", out)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    latest = {row["k"]: row for row in rows}
    left = [row for row in latest.values() if not row["gone"]]
    assert folded(out.rows(), step) == run_sql(sql, left)
