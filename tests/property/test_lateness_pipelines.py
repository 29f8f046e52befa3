"""Laws of windows that change in whole jobs: crashes, rescales and compactions change nothing."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.aggregated_rows import Row, fold
from tests.builders.lives import LIVES, Life, a_job_of, live
from tests.builders.profile import by_profile
from tests.unit.operators.aggregates.test_against_duckdb import FIRST

JOBS = by_profile(8, 30, 200)
"""How many whole jobs a property runs."""
_COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "k": pa.string(),
    "moment": pa.timestamp("us"),
    "v": pa.float64(),
    "gone": pa.bool_(),
}
SCHEMA = pa.schema(_COLUMNS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 9),
            "k": st.none() | st.sampled_from(["a", "b"]),
            "moment": st.integers(0, 60).map(lambda n: FIRST + timedelta(seconds=n)),
            "v": st.none() | st.integers(-6, 6).map(lambda n: n / 2),
            "gone": st.integers(0, 4).map(lambda n: n == 0),
        }
    ),
    max_size=40,
)
CASES: dict[str, tuple[pen.Aggregate, str]] = {
    "n": (pen.count(), "count(*)"),
    "total": (pen.sum("v"), "sum(v)"),
    "least": (pen.min("v"), "min(v)"),
    "different": (pen.count_distinct("v"), "count(DISTINCT v)"),
}
WINDOWS: dict[str, Any] = {
    "tumbling": pen.tumbling("10s"),
    "sliding": pen.sliding("10s", "4s"),
    "session": pen.session("4s"),
}
PLACED = {
    "tumbling": """
        SELECT *, time_bucket(INTERVAL 10 seconds, moment) AS start,
               start + INTERVAL 10 seconds AS stop
        FROM given
    """,
    "sliding": """
        SELECT *, time_bucket(INTERVAL 4 seconds, moment) AS latest,
               unnest([s FOR s IN [latest, latest - INTERVAL 4 seconds, latest - INTERVAL 8 seconds]
                       IF s > moment - INTERVAL 10 seconds]) AS start,
               start + INTERVAL 10 seconds AS stop
        FROM given
    """,
    "session": """
        WITH cut AS (
            SELECT *, (moment - lag(moment) OVER (PARTITION BY k ORDER BY moment)
                       <= INTERVAL 4 seconds IS NOT TRUE)::INT AS is_new
            FROM given
        ), numbered AS (
            SELECT *, sum(is_new) OVER (PARTITION BY k ORDER BY moment) AS number FROM cut
        )
        SELECT *, min(moment) OVER s AS start, max(moment) OVER s + INTERVAL 4 seconds AS stop
        FROM numbered WINDOW s AS (PARTITION BY k, number)
    """,
}


def expected(rows: Sequence[Row], window: str) -> dict[tuple[Any, ...], Row]:
    """Return what SQL computes of all these rows at once."""
    computed = ", ".join(f"{sql} AS {name}" for name, (_, sql) in CASES.items())
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.register("given", pa.Table.from_pylist(list(rows), SCHEMA))
        placed = connection.sql(PLACED[window])
        groups = placed.aggregate(f"k, start, stop, {computed}", "k, start, stop")
        found = groups.to_arrow_table().to_pylist()
    return {(row.pop("k"), row.pop("start"), row.pop("stop")): row for row in found}


def table_of(out: Any) -> dict[tuple[Any, ...], Row]:
    table = fold(
        [{"change": "insert", **row} for row in out.rows()],
        ["k", "window_start", "window_end"],
    )
    for row in table.values():
        del row["window_time"]
    return table


def sinks() -> Any:
    return (pen.list_sink(f"{name}-{new_token()}") for name in ("in", "out", "late"))


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    window=st.sampled_from([*WINDOWS]),
    lives=LIVES,
    rows_per_epoch=st.integers(1, 12),
    lateness=st.sampled_from(["9s", "1000s"]),
)
def test_the_folded_windows_are_those_of_all_rows_that_were_not_too_late(
    rows: list[Row], window: str, lives: list[Life], rows_per_epoch: int, lateness: str
) -> None:
    # Rows may be too late for a part of what overlaps: then SQL does not know which part.
    lateness = lateness if window == "tumbling" else "1000s"
    pipeline = pen.Pipeline("late", parallelism=2)
    source = pen.list_source(rows, schema=SCHEMA, splits=2)
    stream = pipeline.read("rows", source, event_time="moment", watermark_delay="1s")
    _, out, late = sinks()
    results = (
        stream.key_by("k")
        .window("w", WINDOWS[window], allowed_lateness=lateness)
        .aggregate(**{name: aggregate for name, (aggregate, _) in CASES.items()})
    )
    results.write("out", out)
    results.side_output(pen.LATE).write("late", late)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    left = Counter(map(_as_values, rows))
    left.subtract(map(_as_values, late.rows()))
    assert min(left.values(), default=0) >= 0
    in_time = [row for row in rows if _take_one(left, _as_values(row))]
    assert len(in_time) + len(late.rows()) == len(rows)
    assert table_of(out) == expected(in_time, window)
    if lateness == "1000s":
        assert late.rows() == []


def _as_values(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in SCHEMA.names)


def _take_one(left: Counter[tuple[Any, ...]], row: tuple[Any, ...]) -> bool:
    left[row] -= 1
    return left[row] >= 0


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    window=st.sampled_from(["tumbling", "sliding"]),
    lives=LIVES,
    rows_per_epoch=st.integers(1, 12),
    delay=st.sampled_from(["0s", "1000s"]),
    names=st.sampled_from([["n", "total"], [*CASES]]),
)
def test_windows_of_a_table_are_those_of_its_rows_as_they_are_in_the_end(
    *,
    rows: list[Row],
    window: str,
    lives: list[Life],
    rows_per_epoch: int,
    delay: str,
    names: list[str],
) -> None:
    pipeline = pen.Pipeline("changed", parallelism=2)
    source = pen.list_source(rows, schema=SCHEMA)
    stream = pipeline.read("rows", source, event_time="moment", watermark_delay=delay)
    table = stream.from_upserts("table", key="id", deleted="gone")
    came, out, late = sinks()
    table.write("in", came)
    # Either the watermark waits for all changes, or lateness allows for them.
    lateness: dict[str, Any] = {} if delay == "1000s" else {"allowed_lateness": "1000s"}
    results = (
        table.key_by("k")
        .window("w", WINDOWS[window], **lateness)
        .aggregate(**{name: CASES[name][0] for name in names})
    )
    results.write("out", out)
    results.side_output(pen.LATE).write("late", late)
    live(a_job_of(pipeline, rows_per_epoch), lives)
    left = [{"id": key, **row} for (key,), row in fold(came.rows(), ["id"]).items()]
    wanted = {
        key: {name: row[name] for name in names}
        for key, row in expected(left, window).items()
    }
    assert table_of(out) == wanted
    assert late.rows() == []
