"""Laws of changelogs: after each epoch, folded, they are what SQL makes of the rows so far."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.aggregated_rows import Row, bag, fold, fold_bag
from tests.builders.lives import LIVES, Life, a_job_of, after_each_epoch, live
from tests.builders.profile import by_profile
from tests.golden_cases.golden_case import fold_changes

JOBS = by_profile(default=6, ci=40, nightly=1_000)
"""How many whole jobs each property runs."""
DUCKDB = duckdb.connect()
SECOND = 1_000_000
_COLUMNS: dict[str, Any] = {
    "place": pa.int64(),
    "at": pa.timestamp("us"),
    "k": pa.string(),
    "v": pa.int64(),
    "x": pa.float64(),
    "gone": pa.bool_(),
}
SCHEMA = pa.schema(_COLUMNS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 9).map(lambda seconds: seconds * SECOND),
            "k": st.none() | st.sampled_from("abcde"),
            "v": st.none() | st.integers(0, 6),
            "x": st.none() | st.sampled_from([0.5, 1.5, 2.5]),
            "gone": st.booleans(),
        }
    ),
    max_size=40,
).map(lambda rows: [{"place": place, **row} for place, row in enumerate(rows)])


class Edge(NamedTuple):
    """How rows become a table of `k`, `v` and `x`, and which rows of theirs SQL says it has."""

    make: Callable[[pen.Stream], pen.Stream]
    latest: str
    """The order in which the first row of a key is the one that counts."""
    where: str = "true"
    """Whether the row that counts is in the table."""
    needs_order: bool = False
    """Whether the order in which rows come counts: then they come from one split."""


def _to_records(rows: pen.Stream) -> pen.Stream:
    row, is_gone = pl.struct("k", "v", "x"), pl.col("gone")
    return rows.select(
        before=pl.when(is_gone).then(row),
        after=pl.when(~is_gone).then(row),
        op=pl.when(is_gone).then(pl.lit("d")).otherwise(pl.lit("u")),
        source=pl.struct(lsn=pl.col("place") * 7 % 41),
    )


_BY_VALUES = "v DESC NULLS LAST, x DESC NULLS LAST"
EDGES: Mapping[str, Edge] = {
    "to_table": Edge(
        lambda rows: rows.select("k", "v", "x").to_table("edge", key="k", order_by="v"),
        _BY_VALUES,
    ),
    "last of equals": Edge(
        lambda rows: (
            rows.drop("place", "gone")
            .deduplicate("edge", "k", keep="last")
            .select("k", "v", "x")
        ),
        f'"at" DESC, {_BY_VALUES}',
    ),
    "from_upserts": Edge(
        lambda rows: rows.select("k", "v", "x", "gone").from_upserts(
            "edge", key="k", deleted="gone"
        ),
        "place DESC",
        "NOT gone",
        needs_order=True,
    ),
    "from_debezium": Edge(
        lambda rows: _to_records(rows).from_debezium("edge", key="k", on_bad="divert"),
        "place DESC",
        "NOT gone AND k IS NOT NULL",
        needs_order=True,
    ),
    "from_debezium by order": Edge(
        lambda rows: _to_records(rows).from_debezium(
            "edge", key="k", on_bad="divert", order_by="source.lsn"
        ),
        "place * 7 % 41 DESC",
        "NOT gone AND k IS NOT NULL",
    ),
}


def _by_key(changes: Sequence[Row]) -> Counter[Any]:
    return bag({"k": key, **row} for (key,), row in fold(changes, ["k"]).items())


def _by_last_upsert(upserts: Sequence[Row]) -> Counter[Any]:
    last = {row["k"]: row for row in upserts}
    return bag(
        {name: row[name] for name in row if name != "deleted"}
        for row in last.values()
        if not row["deleted"]
    )


class Step(NamedTuple):
    """What is done with a table `t`, the same in SQL, and how its output is folded."""

    then: Callable[[pen.Stream], pen.Stream]
    sql: str
    folded: Callable[[Sequence[Row]], Counter[Any]] = _by_key


def _without_halves(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("x").ne_missing(0.5))


STEPS: Mapping[str, Step] = {
    "as it is": Step(lambda table: table, "select k, v, x from t"),
    "filtered": Step(
        lambda table: table.filter(pl.col("v") % 2 == 0),
        "select k, v, x from t where v % 2 = 0",
    ),
    "fewer columns": Step(lambda table: table.select("k", "x"), "select k, x from t"),
    "other names": Step(
        lambda table: table.drop("x").rename({"v": "w"}), "select k, v w from t"
    ),
    "computed": Step(
        lambda table: table.with_columns(x=pl.col("x") * 2, y=pl.col("v") + 1),
        "select k, v, x * 2 x, v + 1 y from t",
    ),
    "twice": Step(
        lambda table: table.filter(pl.col("v") > 1).union(
            table.filter(pl.col("x") > 1).select("k", "v", "x")
        ),
        "select k, v, x from t where v > 1 union all select k, v, x from t where x > 1",
        fold_bag,
    ),
    "through a function": Step(
        lambda table: table.filter(pl.col("v") > 1).map_batches(_without_halves),
        "select k, v, x from t where v > 1 and x is distinct from 0.5",
    ),
    "as plain rows": Step(
        lambda table: table.filter(pl.col("v") > 1).to_rows(),
        "select k, v, x from t where v > 1",
    ),
    "as upserts": Step(
        lambda table: table.filter(pl.col("v") > 1).to_upserts(),
        "select k, v, x from t where v > 1",
        _by_last_upsert,
    ),
    "as records": Step(
        lambda table: table.filter(pl.col("v") > 1).to_debezium(),
        "select k, v, x from t where v > 1",
        lambda changes: bag(fold_changes(changes, ["k"])),
    ),
}


def run_sql(sql: str, edge: Edge, rows: Sequence[Row]) -> Counter[Any]:
    """Return what SQL makes of the table `t` that rows come to."""
    connection = DUCKDB.cursor()
    connection.register("rows", pa.Table.from_pylist(list(rows), schema=SCHEMA))
    connection.execute(f"""
        CREATE TEMP TABLE t AS SELECT k, v, x FROM (
            SELECT * FROM rows
            QUALIFY row_number() OVER (PARTITION BY k ORDER BY {edge.latest}) = 1
        ) WHERE {edge.where}
    """)  # noqa: S608 (the words are of this file)
    return bag(connection.sql(sql).to_arrow_table().to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@settings(max_examples=JOBS)
@given(
    edge=st.sampled_from(list(EDGES)),
    rows=ROWS,
    lives=LIVES,
    rows_per_epoch=st.integers(1, 12),
    splits=st.integers(1, 3),
)
def test_after_each_epoch_a_step_is_what_sql_makes_of_the_table_so_far(
    *,
    step: str,
    edge: str,
    rows: list[Row],
    lives: list[Life],
    rows_per_epoch: int,
    splits: int,
) -> None:
    then, table = STEPS[step], EDGES[edge]
    token = new_token()
    seen, out = (pen.list_sink(f"{name}-{token}") for name in ("seen", "out"))
    pipeline = pen.Pipeline("tables", parallelism=2)
    splits = 1 if table.needs_order else splits
    source = pen.list_source(rows, schema=SCHEMA, splits=splits)
    stream = pipeline.read("rows", source, event_time="at", watermark_delay="10s")
    stream.write("seen", seen)
    then.then(table.make(stream)).write("out", out)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    for read, written in after_each_epoch(seen, out):
        assert then.folded(written) == run_sql(then.sql, table, read)
    assert len(seen.rows()) == len(rows)
