"""Laws of joins in whole jobs: they are what DuckDB says, through crashes and rescales."""

from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from penstock.runtime.in_process import Chaos
from tests.builders.joins import (
    HOWS,
    SECOND,
    WHERE,
    JoinJob,
    Row,
    in_order,
    interval_sql,
    result_of,
    run_sql,
    same_window_sql,
    session_sql,
    window_sql,
)
from tests.builders.lives import LIVES, Life, a_job_of, live
from tests.builders.profile import by_profile

RUNS = by_profile(default=8, ci=20, nightly=400)
"""How many whole jobs a property runs, by profile."""

rows = st.builds(
    lambda key, text, at, n: {"key": key, "text": text, "at": at, "n": n},
    st.sampled_from([0, 1, 2, None]),
    st.sampled_from(["a", "a", "b", None]),
    st.integers(-20, 60),
    st.integers(0, 5),
)


@dataclass(frozen=True)
class Case:
    """A join, and the same as SQL."""

    options: dict[str, Any]
    sql: Any


CASES = {
    "around": Case(
        {"within": ("-5s", "3s")}, lambda how, **w: interval_sql(how, -5, 3, **w)
    ),
    "before": Case(
        {"within": ("-9s", "-2s")}, lambda how, **w: interval_sql(how, -9, -2, **w)
    ),
    "at-once": Case({"within": (0, 0)}, lambda how, **w: interval_sql(how, 0, 0, **w)),
    "tumbling": Case(
        {"window": pen.tumbling("10s")}, lambda how, **w: window_sql(how, 10, 10, **w)
    ),
    "sliding": Case(
        {"window": pen.sliding("10s", "4s")}, lambda how, **w: window_sql(how, 10, 4, **w)
    ),
    "session": Case(
        {"window": pen.session("4s")}, lambda how, **w: session_sql(how, 4, **w)
    ),
}


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    case=st.sampled_from(sorted(CASES)),
    how=st.sampled_from(HOWS),
    where=st.booleans(),
    left=st.lists(rows, max_size=40),
    right=st.lists(rows, max_size=40),
    budget=st.integers(1, 25),
    lives=LIVES,
    chaos=st.tuples(st.sampled_from([0, 0, 0.05]), st.integers(0, 1_000)),
)
def test_rows_on_time_are_joined_as_sql_joins_them_however_the_job_is_run(
    *,
    case: str,
    how: str,
    where: bool,
    left: list[Row],
    right: list[Row],
    budget: int,
    lives: list[Life],
    chaos: tuple[float, int],
) -> None:
    options = {**CASES[case].options, "how": how, "where": WHERE if where else None}
    joins = JoinJob(left, right, watermark_delay="100s", parallelism=2, splits=3, **options)
    rate, seed = chaos
    live(a_job_of(joins.pipeline, budget, chaos=Chaos(rate, seed), seed=seed), lives)
    assert joins.found() == run_sql(CASES[case].sql(how, where=where), left, right)
    assert joins.late.rows() == []
    assert joins.late_right.rows() == []


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_join_of_a_few_rows_is_what_sql_says(case: str, how: str) -> None:
    left, right = (
        [
            {"key": at % 3 or None, "text": "ab"[at % 2], "at": at * step % 23, "n": at % 6}
            for at in range(30)
        ]
        for step in (7, 5)
    )
    joins = JoinJob(left, right, watermark_delay="30s", how=how, **CASES[case].options)
    a_job_of(joins.pipeline, 7).run()
    assert joins.found() == run_sql(CASES[case].sql(how, where=False), left, right)


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(HOWS),
    bounds=st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(sorted),
    left=st.lists(rows, max_size=40),
    right=st.lists(rows, max_size=40),
    budget=st.integers(1, 9),
)
def test_what_a_join_emits_is_never_late_for_the_step_behind_it(
    *, how: str, bounds: list[int], left: list[Row], right: list[Row], budget: int
) -> None:
    within = (bounds[0] * SECOND, bounds[1] * SECOND)
    ordered = [sorted(side, key=lambda row: row["at"]) for side in (left, right)]
    joins = JoinJob(*ordered, how=how, within=within)
    counts = joins.joined.window("w", pen.tumbling("1s")).aggregate(rows=pen.count())
    token = new_token()
    counted, late = pen.list_sink(f"counted-{token}"), pen.list_sink(f"dropped-{token}")
    counts.write("counts", counted)
    counts.side_output(pen.LATE).write("dropped", late)
    a_job_of(joins.pipeline, budget).run()
    assert late.rows() == []
    assert sum(row["rows"] for row in counted.rows()) == len(joins.out.rows())
    assert joins.late.rows() == joins.late_right.rows() == []


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(HOWS),
    left=st.lists(rows, max_size=30),
    right=st.lists(rows, max_size=30),
    budget=st.integers(1, 25),
    sliding=st.booleans(),
    lives=LIVES,
)
def test_aggregates_over_equal_windows_are_joined_as_sql_joins_them(
    *,
    how: str,
    left: list[Row],
    right: list[Row],
    budget: int,
    sliding: bool,
    lives: list[Life],
) -> None:
    window = pen.sliding("10s", "5s") if sliding else pen.tumbling("10s")
    job = JoinJob(left, right, watermark_delay="100s", within=("0s", "0s"), parallelism=2)
    lefts = job.left.key_by("key").window("lw", window).aggregate(n=pen.count())
    rights = (
        job.right.key_by(key=pl.col("id")).window("rw", window).aggregate(n=pen.count())
    )
    out = pen.list_sink(f"same-{new_token()}")
    options: Any = {"on": "key", "how": how, "window": pen.same_window()}
    lefts.join("same", rights, **options).write("o", out)
    live(a_job_of(job.pipeline, budget), lives)
    found = in_order(
        (row["key"], row["n"], row.get("n_right"), *result_of(row)[-2:])
        for row in out.rows()
    )
    assert found == run_sql(same_window_sql(how, 10, 5 if sliding else 10), left, right)
