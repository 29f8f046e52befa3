"""Laws of windows in whole jobs: they are what DuckDB says, through crashes and rescales."""

# ruff: noqa: S608 (queries are made of numbers of this file)

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.runtime.in_process import Chaos
from tests.builders.lives import LIVES, Life, a_job_of, live
from tests.builders.profile import by_profile
from tests.builders.windows import SECOND, Result, Row, WindowJob
from tests.unit.state.files.file_builders import a_schema

RUNS = by_profile(default=8, ci=20, nightly=400)
"""How many whole jobs a property runs, by profile."""
SCHEMA = a_schema(key=pa.int64(), at=pa.int64(), value=pa.int64())

rows = st.builds(
    lambda key, second, value: {"key": key, "at": second * SECOND, "value": value},
    st.integers(0, 4),
    st.integers(-20, 60),
    st.integers(-5, 5),
)


@dataclass(frozen=True)
class Case:
    """Windows, and what they are as a batch."""

    window: Any
    width: int = 0
    slide: int = 0

    def expected(self, given_rows: Sequence[Row]) -> list[Result]:
        """Return what DuckDB says: key, start and end, count and sum, sorted."""
        sql = _windows_sql(self.width, self.slide) if self.width else _sessions_sql(4)
        with duckdb.connect() as connection:
            connection.register("rows", pa.Table.from_pylist(list(given_rows), SCHEMA))
            return sorted(connection.execute(sql).fetchall())


def _windows_sql(width: int, slide: int) -> str:
    width, slide = width * SECOND, slide * SECOND
    return f"""
        SELECT key, w, w + {width}, count(*), sum(value)::BIGINT FROM (
            SELECT *, unnest(range(
                (floor("at" / {slide}) * {slide})::BIGINT, ("at" - {width})::BIGINT, -{slide}
            )) AS w FROM rows
        ) GROUP BY key, w
    """


def _sessions_sql(gap: int) -> str:
    gap *= SECOND
    return f"""
        SELECT key, min("at"), max("at") + {gap}, count(*), sum(value)::BIGINT FROM (
            SELECT *, sum(is_first::INT) OVER (PARTITION BY key ORDER BY "at") AS number FROM (
                SELECT *, coalesce(
                    "at" - lag("at") OVER (PARTITION BY key ORDER BY "at") > {gap}, true
                ) AS is_first FROM rows
            )
        ) GROUP BY key, number
    """


CASES = [
    Case(pen.tumbling("10s"), 10, 10),
    Case(pen.sliding("10s", "4s"), 10, 4),
    Case(pen.session("4s")),
]


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    case=st.sampled_from(CASES),
    given_rows=st.lists(rows, max_size=60),
    keyed=st.booleans(),
    budget=st.integers(1, 25),
    lives=LIVES,
    chaos=st.tuples(st.sampled_from([0, 0, 0.05]), st.integers(0, 1_000)),
)
def test_rows_on_time_give_the_same_windows_however_the_job_is_run(
    *,
    case: Case,
    given_rows: list[Row],
    keyed: bool,
    budget: int,
    lives: list[Life],
    chaos: tuple[float, int],
) -> None:
    windows = WindowJob(
        [dict(row) for row in given_rows],
        case.window,
        keyed=keyed,
        watermark_delay="100s",
        parallelism=2,
        splits=3,
    )
    rate, seed = chaos
    live(a_job_of(windows.pipeline, budget, chaos=Chaos(rate, seed), seed=seed), lives)
    alike = given_rows if keyed else [{**row, "key": 0} for row in given_rows]
    found = [(key or 0, *rest) for key, *rest in windows.found()]
    assert sorted(found) == case.expected(alike)
    assert windows.late.rows() == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: str(case.window))
@settings(max_examples=RUNS)
@given(given_rows=st.lists(rows, max_size=60), budget=st.integers(1, 10))
def test_no_row_is_both_in_a_result_and_late_nor_neither(
    case: Case, given_rows: list[Row], budget: int
) -> None:
    windows = WindowJob(
        [dict(row) for row in given_rows],
        case.window,
        watermark_delay="5s",
        parallelism=2,
        splits=2,
    )
    a_job_of(windows.pipeline, budget).run()
    counted = sum(rows for *_, rows, _ in windows.found())
    total = sum(total for *_, total in windows.found())
    late = windows.late.rows()
    assert counted + len(late) == len(given_rows)
    assert total + sum(row["value"] for row in late) == sum(
        row["value"] for row in given_rows
    )
