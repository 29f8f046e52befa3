"""Laws of times to live: the table that changes lead to is that of the rows, however they are cut."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import Row, fold
from tests.builders.lives import LIVES, Life, a_job_of, live
from tests.builders.profile import by_profile

JOBS = by_profile(default=20, ci=40, nightly=400)
"""How many whole jobs the property runs, by profile."""
MINUTE = 60_000_000
TTL = 10
_COLUMNS: dict[str, Any] = {"user": pa.string(), "n": pa.int64(), "at": pa.timestamp("us")}
SCHEMA = pa.schema(_COLUMNS)
KEYS = st.none() | st.sampled_from("abcd")


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[list[Row], int]:
    """Draw rows out of order, and a watermark delay by which none of them is late."""
    delay = draw(st.sampled_from([0, 3, 25, 60]))
    drawn = draw(
        st.lists(
            st.tuples(KEYS, st.integers(0, 90), st.integers(0, max(0, delay - 1))),
            max_size=30,
        )
    )
    drawn.sort(key=lambda row: row[1] + row[2])
    rows = [
        {"user": user, "n": n, "at": at * MINUTE} for n, (user, at, _) in enumerate(drawn)
    ]
    return rows, delay


def expected(rows: Sequence[Row], delay: int) -> dict[tuple[Any, ...], Row]:
    """Return the results of the latest life of each key that the last watermark leaves."""
    by_user: dict[Any, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        life = by_user[row["user"]]
        if life and row["at"] >= life[-1]["at"] + TTL * MINUTE:
            life.clear()
        life.append(row)
    reached = max((row["at"] for row in rows), default=0) - delay * MINUTE
    return {
        (user,): {"rows": len(life), "total": sum(row["n"] for row in life)}
        for user, life in by_user.items()
        if life[-1]["at"] + TTL * MINUTE > reached
    }


def a_job(
    rows: Sequence[Row],
    delay: int,
    out: Any,
    rows_per_epoch: int,
    *,
    is_keyed: bool = True,
    splits: int = 1,
    sources: Sequence[int] = (0,),
) -> LocalJob:
    """Make a job whose rows are dealt in turn to the sources that are named, a union of all."""
    pipeline = pen.Pipeline("lives", parallelism=2)
    dealt: dict[int, list[Row]] = {number: [] for number in sources}
    for row, number in zip(rows, cycle(sources), strict=False):
        dealt[number].append(row)
    stream, *others = (
        pipeline.read(
            f"rows{number}",
            pen.list_source(own, schema=SCHEMA, splits=splits),
            event_time="at",
            watermark_delay=f"{delay}m",
        )
        for number, own in dealt.items()
    )
    if others:
        stream = stream.union(*others)
    steps: Any = stream.key_by("user") if is_keyed else stream
    lives = steps.aggregate("lives", ttl=f"{TTL}m", rows=pen.count(), total=pen.sum("n"))
    lives.write("out", out)
    return a_job_of(pipeline, rows_per_epoch)


SOURCES = st.just([0]) | st.lists(st.integers(0, 2), min_size=1, max_size=6)


def at(hours_and_users: Sequence[tuple[str, int]]) -> list[Row]:
    return [
        {"user": user, "n": n, "at": minute * MINUTE}
        for n, (user, minute) in enumerate(hours_and_users)
    ]


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    drawn=some_rows(),
    rows_per_epoch=st.integers(1, 12),
    splits=st.integers(1, 4),
    sources=SOURCES,
    lives=LIVES,
)
@example(
    drawn=(at([("a", 0), ("b", 30), ("a", 30)]), 0),
    rows_per_epoch=3,
    splits=1,
    sources=[0],
    lives=[],
)
@example(
    drawn=(at([("a", 0), ("b", 30), ("a", 30)]), 0),
    rows_per_epoch=2,
    splits=1,
    sources=[0],
    lives=[],
)
@example(
    drawn=(at([("a", 0), ("b", 30), ("c", 5)]), 25),
    rows_per_epoch=1,
    splits=3,
    sources=[0],
    lives=[],
)
@example(
    drawn=(at([("a", 0), ("b", 5), ("c", 7), ("d", 30)]), 0),
    rows_per_epoch=1,
    splits=1,
    sources=[0, 0, 0, 1],  # the source of the latest row ends first
    lives=[(1, 2, None), (3, 2, None)],
)
@example(
    drawn=(at([("a", 0), ("a", 30), ("a", 9), ("a", 18), ("a", 27)]), 60),
    rows_per_epoch=1,
    splits=1,
    sources=[0],
    lives=[(3, 2, None)],
)
def test_the_table_depends_on_the_rows_alone_and_not_on_how_epochs_and_splits_cut_them(
    drawn: tuple[list[Row], int],
    rows_per_epoch: int,
    splits: int,
    sources: list[int],
    lives: list[Life],
) -> None:
    rows, delay = drawn
    out = pen.list_sink(f"lives-{new_token()}")
    job = a_job(rows, delay, out, rows_per_epoch, splits=splits, sources=sources)
    live(job, lives)
    assert fold(out.rows(), ["user"]) == expected(rows, delay)


@pytest.mark.slow
@settings(max_examples=JOBS // 2)
@given(drawn=some_rows(), rows_per_epoch=st.integers(1, 12), splits=st.integers(1, 4))
def test_the_result_of_all_rows_depends_on_them_alone_too(
    drawn: tuple[list[Row], int], rows_per_epoch: int, splits: int
) -> None:
    rows, delay = drawn
    rows = [{**row, "user": "a"} for row in rows]
    out = pen.list_sink(f"one-life-{new_token()}")
    a_job(rows, delay, out, rows_per_epoch, is_keyed=False, splits=splits).run()
    wanted = {key[1:]: row for key, row in expected(rows, delay).items()}
    assert fold(out.rows(), []) == wanted
