"""Filtered rows of any time make no row late, whatever splits, epochs and parallelism are."""

from collections import Counter
from datetime import UTC, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.testing import CUT, LocalJob, ScriptedSource
from tests.builders.pipelines import a_list

_FIELDS: list[Any] = [
    pa.field("split", pa.string()),
    pa.field("at", pa.timestamp("us")),
    pa.field("wanted", pa.bool_()),
]
SCHEMA = pa.schema(_FIELDS)
TICK = 1_000_000
WINDOW = 5 * TICK
LAST_YEAR = 253_370_764_800_000_000
"""The beginning of the year 9999."""


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draw splits whose wanted rows are in order, and unwanted rows of any time among them."""
    drawn = {}
    for name in draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]])):
        steps: list[Any] = []
        now = draw(st.integers(0, 60)) * TICK
        for _ in range(draw(st.integers(0, 8))):
            now += draw(st.integers(0, 9)) * TICK
            wild = st.sampled_from([-LAST_YEAR // 10, now // 2, now + 99 * TICK, LAST_YEAR])
            rows = draw(
                st.lists(
                    st.one_of(
                        st.just({"split": name, "at": now, "wanted": True}),
                        st.builds(
                            lambda at, name=name: {
                                "split": name,
                                "at": at,
                                "wanted": False,
                            },
                            wild,
                        ),
                    ),
                    max_size=3,
                )
            )
            steps += [rows, CUT] if rows else [CUT]
        drawn[name] = steps
    return drawn


def rows_of(script: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        row
        for steps in script.values()
        for step in steps
        if isinstance(step, list)
        for row in step
    ]


@given(
    script=scripts(),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=4),
    parallelism=st.integers(1, 3),
    is_computed=st.booleans(),
)
def test_rows_in_order_are_never_late_through_rows_that_are_filtered(
    script: dict[str, list[Any]],
    runs: list[tuple[int, int]],
    parallelism: int,
    is_computed: bool,
) -> None:
    """Each of the `runs` is stopped after some epochs, at its own parallelism."""
    pipeline, out, late = pen.Pipeline("p", parallelism=parallelism), a_list(), a_list()
    event_time: Any = pl.col("at").dt.offset_by("0s").alias("at") if is_computed else "at"
    stream = pipeline.read("rows", ScriptedSource(script, SCHEMA), event_time=event_time)
    wanted = stream.filter(pl.col("wanted")).key_by("split")
    counts = wanted.window("w", pen.tumbling(timedelta(microseconds=WINDOW)))
    results = counts.aggregate(n=pen.count())
    results.write("out", out)
    results.side_output(pen.LATE).write("late", late)

    job, status = LocalJob(pipeline), None
    for epochs, subtasks in runs:
        if status is None or status.phase is not pen.JobPhase.FINISHED:
            status = job.run(epochs=epochs, parallelism=subtasks)
    if status is None or status.phase is not pen.JobPhase.FINISHED:
        job.run()

    expected: Counter[tuple[str, int]] = Counter(
        (row["split"], row["at"] // WINDOW * WINDOW)
        for row in rows_of(script)
        if row["wanted"]
    )
    found = {
        (row["split"], int(row["window_start"].timestamp()) * TICK): row["n"]
        for row in (_utc(row) for row in out.rows())
    }
    assert late.rows() == []
    assert found == dict(expected)


def _utc(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "window_start": row["window_start"].replace(tzinfo=UTC)}
