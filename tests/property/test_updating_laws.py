"""Laws of updating aggregates: after each epoch the folded changelog is what SQL says."""

from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.aggregated_rows import Row, agrees, fold
from tests.builders.lives import LIVES, Life, a_job_of, after_each_epoch, live
from tests.builders.profile import by_profile

JOBS = by_profile(default=20, ci=30, nightly=300)
"""How many whole jobs the property runs, by profile."""
_COLUMNS: dict[str, Any] = {
    "user": pa.string(),
    "site": pa.int8(),
    "n": pa.int64(),
    "at": pa.timestamp("us"),
}
SCHEMA = pa.schema(_COLUMNS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.none() | st.sampled_from("abcdefgh"),
            "site": st.none() | st.integers(0, 1),
            "n": st.none() | st.integers(-1_000, 1_000),
            "at": st.integers(0, 20),
        }
    ),
    max_size=40,
)
AGGREGATES: dict[str, tuple[Any, str]] = {
    "rows": (pen.count(), "count(*)"),
    "even": (pen.count(where=pl.col("n") % 2 == 0), "count(*) FILTER (n % 2 = 0)"),
    "total": (pen.sum("n"), "sum(n)::BIGINT"),
    "least": (pen.min("n"), "min(n)"),
    "mean": (pen.avg("n"), "avg(n)"),
    "spread": (pen.stddev("n"), "stddev_samp(n)"),
    "latest": (pen.last("n"), 'last(n ORDER BY "at", n) FILTER (n NOTNULL)'),
    "distinct": (pen.count_distinct("n"), "count(DISTINCT n)"),
}


def expected(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Return the table that SQL makes of rows."""
    computed = ", ".join(f"{sql} AS {name}" for name, (_, sql) in AGGREGATES.items())
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_pylist(list(rows), SCHEMA))
        groups = connection.table("rows").aggregate(f"user, site, {computed}", "user, site")
        found = groups.to_arrow_table().to_pylist()
    return {(row.pop("user"), row.pop("site")): row for row in found}


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(rows=ROWS, lives=LIVES, rows_per_epoch=st.integers(3, 20))
def test_after_each_epoch_the_changelog_leads_to_what_sql_says_of_the_rows_so_far(
    rows: list[Row],
    lives: list[Life],
    rows_per_epoch: int,
) -> None:
    token = new_token()
    seen, out = (pen.list_sink(f"{name}-{token}") for name in ("seen", "out"))
    pipeline = pen.Pipeline("totals", parallelism=2)
    source = pen.list_source(rows, schema=SCHEMA, splits=3)
    stream = pipeline.read("rows", source, event_time="at", watermark_delay="1s")
    stream.write("seen", seen)
    aggregates = {name: aggregate for name, (aggregate, _) in AGGREGATES.items()}
    stream.key_by("user", "site").aggregate("totals", **aggregates).write("out", out)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    for read, written in after_each_epoch(seen, out):
        wanted = expected(read)
        found = fold(written, ["user", "site"])
        assert found.keys() == wanted.keys()
        wrong = {
            (key, name): (found[key][name], value)
            for key, row in wanted.items()
            for name, value in row.items()
            if not agrees(found[key][name], value, scale=1.0)
        }
        assert wrong == {}
    assert len(seen.rows()) == len(rows)
