"""Laws of updating aggregates: the folded changelog is the batch result, whatever happened."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import Row, agrees, fold
from tests.builders.lives import LIVES, Life, a_job_of, live

JOBS = {50: 20, 150: 40}.get(settings().max_examples, 300)
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
AGGREGATES: dict[str, Any] = {
    "rows": pen.count(),
    "even": pen.count(where=pl.col("n") % 2 == 0),
    "total": pen.sum("n"),
    "least": pen.min("n"),
    "mean": pen.avg("n"),
    "spread": pen.stddev("n"),
    "latest": pen.last("n"),
    "distinct": pen.count_distinct("n"),
}


def expected(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Return the table that one pass over all rows comes to."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["user"], row["site"]].append(row)
    return {key: _results(members) for key, members in groups.items()}


def _results(rows: Sequence[Row]) -> Row:
    values = [row["n"] for row in rows if row["n"] is not None]
    count, total = len(values), sum(values)
    mean = total / count if count else None
    spread = None
    if mean is not None and count > 1:
        spread = math.sqrt(math.fsum((n - mean) ** 2 for n in values) / (count - 1))
    timed = [(row["at"], row["n"]) for row in rows if row["n"] is not None]
    return {
        "rows": len(rows),
        "even": sum(n % 2 == 0 for n in values),
        "total": total if values else None,
        "least": min(values, default=None),
        "mean": mean,
        "spread": spread,
        "latest": max(timed, default=(None, None))[1],
        "distinct": len(set(values)),
    }


def a_job(rows: Sequence[Row], out: Any, rows_per_epoch: int) -> LocalJob:
    pipeline = pen.Pipeline("totals", parallelism=2)
    source = pen.list_source(list(rows), schema=SCHEMA, splits=3)
    stream = pipeline.read("rows", source, event_time="at", watermark_delay="1s")
    keyed = stream.key_by("user", "site")
    keyed.aggregate("totals", **AGGREGATES).write("out", out)
    return a_job_of(pipeline, rows_per_epoch)


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(rows=ROWS, lives=LIVES, rows_per_epoch=st.integers(3, 20))
def test_the_changelog_leads_to_what_one_pass_over_all_rows_gives(
    rows: list[Row],
    lives: list[Life],
    rows_per_epoch: int,
) -> None:
    out = pen.list_sink(f"changes-{new_token()}")
    job = a_job(rows, out, rows_per_epoch)
    live(job, lives)
    wanted = expected(rows)
    found = fold(out.rows(), ["user", "site"])
    assert found.keys() == wanted.keys()
    wrong = {
        (key, name): (found[key][name], value)
        for key, row in wanted.items()
        for name, value in row.items()
        if not agrees(found[key][name], value, scale=1.0)
    }
    assert wrong == {}
