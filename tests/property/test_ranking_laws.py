"""Laws of rankings in whole jobs: after each epoch they are what DuckDB says of the rows so far."""

# ruff: noqa: S608 (queries are made of the words of tests)

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.aggregated_rows import bag, fold, fold_bag
from tests.builders.lives import LIVES, Life, a_job_of, after_each_epoch, live
from tests.builders.profile import by_profile

JOBS = by_profile(default=10, ci=25, nightly=300)
"""How many whole jobs a property runs, by profile."""
Row: TypeAlias = Mapping[str, Any]
SECOND = 1_000_000
_COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "key": pa.string(),
    "price": pa.float64(),
    "n": pa.int8(),
    "at": pa.timestamp("us"),
}
SCHEMA = pa.schema(_COLUMNS)
ROWS = st.lists(
    st.builds(
        lambda id_, key, price, n, at: {
            "id": id_,
            "key": key,
            "price": price,
            "n": n,
            "at": at * SECOND,
        },
        st.integers(0, 6),
        st.sampled_from(["a", "b", "b", "c", None]),
        st.sampled_from([None, 1.5, 2.0, 2.0, 3.0, -0.0, 0.0, float("inf")]),
        st.sampled_from([0, 1, None]),
        st.integers(0, 40),
    ),
    max_size=60,
)
ORDERS: dict[str, tuple[Any, Any, str]] = {
    "price": ("price", True, "price DESC NULLS LAST"),
    "least": ("price", False, "price ASC NULLS FIRST"),
    "both": (["price", "n"], True, "price DESC NULLS LAST, n DESC NULLS LAST"),
    "mixed": (
        *(["price", "at"], [True, False]),
        'price DESC NULLS LAST, "at" ASC NULLS FIRST',
    ),
}


class Job:
    """A job whose rows so far are known: each epoch also writes what it read."""

    def __init__(self, rows: Sequence[Row], budget: int, *, splits: int = 2) -> None:
        token = new_token()
        self.seen = pen.list_sink(f"seen-{token}")
        self.out = pen.list_sink(f"out-{token}")
        self.late = pen.list_sink(f"late-{token}")
        self.pipeline = pen.Pipeline("ranking", parallelism=2)
        source = pen.list_source(list(rows), SCHEMA, splits=splits)
        self.stream = self.pipeline.read(
            "rows", source, event_time="at", watermark_delay="100s"
        )
        self.stream.write("seen", self.seen)
        self._budget = budget

    def live(self, lives: Sequence[Life]) -> Iterator[list[list[dict[str, Any]]]]:
        """Run the job to its end; yield after each epoch what it had read and written."""
        live(a_job_of(self.pipeline, self._budget), lives)
        return after_each_epoch(self.seen, self.out)


def ask(query: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what DuckDB makes of rows, which are called `rows`."""
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_pylist(list(rows), SCHEMA))
        found: Any = connection.sql(query).to_arrow_table()
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def ranked_sql(order: str, per: str, ties: Sequence[str], source: str = "rows") -> str:
    by = ORDERS[order][2]
    down = "DESC NULLS LAST" if by.split()[1] == "DESC" else "ASC NULLS FIRST"
    rest = "".join(f', "{name}" {down}' for name in ties)
    return (
        f"SELECT *, row_number() OVER (PARTITION BY {per} ORDER BY {by}{rest}) AS rank "
        f"FROM {source} QUALIFY rank <= $n"
    )


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    order=st.sampled_from(sorted(ORDERS)),
    n=st.integers(1, 4),
    is_keyed=st.booleans(),
    is_ranked=st.booleans(),
    budget=st.integers(3, 25),
    lives=LIVES,
)
def test_the_first_rows_of_an_append_only_stream_are_those_of_sql_after_each_epoch(
    *,
    rows: list[Row],
    order: str,
    n: int,
    is_keyed: bool,
    is_ranked: bool,
    budget: int,
    lives: list[Life],
) -> None:
    job = Job(rows, budget)
    by, descending, _ = ORDERS[order]
    options: dict[str, Any] = {"by": by, "descending": descending}
    per = "key" if is_keyed else None
    options["rank"] = "rank" if is_ranked else None
    job.stream.top("top", n, per=per, **options).write("out", job.out)
    ties = [name for name in SCHEMA.names if name != "key" or not is_keyed]
    query = ranked_sql(order, "key" if is_keyed else "1", ties).replace("$n", str(n))
    for read, written in job.live(lives):
        wanted = ask(query, read)
        if is_ranked:
            keys = ["key", "rank"] if is_keyed else ["rank"]
            fold(written, keys)
        else:
            wanted = [{k: v for k, v in row.items() if k != "rank"} for row in wanted]
        assert fold_bag(written) == bag(wanted)


LATEST = (
    '(SELECT * FROM rows QUALIFY row_number() OVER (PARTITION BY id ORDER BY "at" DESC, '
    "key DESC NULLS LAST, price DESC NULLS LAST, n DESC NULLS LAST) = 1)"
)


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    order=st.sampled_from(sorted(ORDERS)),
    n=st.integers(1, 4),
    per=st.sampled_from(["key", None]),
    rank=st.sampled_from(["rank", None]),
    is_bag=st.booleans(),
    budget=st.integers(3, 25),
    lives=LIVES,
)
def test_the_first_rows_of_a_table_that_changes_are_those_of_sql_after_each_epoch(
    *,
    rows: list[Row],
    order: str,
    n: int,
    per: str | None,
    rank: str | None,
    is_bag: bool,
    budget: int,
    lives: list[Life],
) -> None:
    # Both zeros are one value: which of them is kept depends on what was stored first.
    rows = [{**row, "price": 0.0} if row["price"] == 0 else row for row in rows]
    job = Job(rows, budget)
    by, descending, _ = ORDERS[order]
    table, source = job.stream.to_table("table", key="id"), LATEST
    if is_bag:
        table = table.union(job.stream.to_table("other", key="id"))
        source = f"(SELECT * FROM {LATEST} UNION ALL SELECT * FROM {LATEST})"
    top = table.top("top", n, by=by, per=per, descending=descending, rank=rank)
    top.write("out", job.out)
    # A table's rows are told apart by its key, those of a bag by all columns as they stand.
    ties = [name for name in SCHEMA.names if name != per] if is_bag else ["id"]
    query = ranked_sql(order, per or "1", ties, source).replace("$n", str(n))
    for read, written in job.live(lives):
        wanted = ask(query, read)
        if rank is None:
            wanted = [{k: v for k, v in row.items() if k != "rank"} for row in wanted]
        assert fold_bag(written) == bag(wanted)
        if rank is not None:
            fold(written, ["rank"] if per is None else [per, "rank"])


WINDOWS = {
    "tumbling": (pen.tumbling("10s"), 10, 10),
    "sliding": (pen.sliding("10s", "4s"), 10, 4),
}


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    window=st.sampled_from([*WINDOWS, "session"]),
    order=st.sampled_from(sorted(ORDERS)),
    n=st.integers(1, 4),
    is_keyed=st.booleans(),
    budget=st.integers(3, 25),
    lives=LIVES,
)
def test_the_first_rows_of_windows_are_those_of_sql(
    *,
    rows: list[Row],
    window: str,
    order: str,
    n: int,
    is_keyed: bool,
    budget: int,
    lives: list[Life],
) -> None:
    job = Job(rows, budget)
    by, descending, _ = ORDERS[order]
    stream: Any = job.stream.key_by("key") if is_keyed else job.stream
    per = "key" if is_keyed else "1"
    if window == "session":
        cut = stream.window("w", pen.session("4s"))
        source = f"""(
            SELECT id, key, price, n, "at", min("at") OVER (PARTITION BY {per}, s) AS w FROM (
                SELECT *, sum(is_first::INT) OVER (PARTITION BY {per} ORDER BY "at") AS s FROM (
                    SELECT *, coalesce("at" - lag("at") OVER (PARTITION BY {per} ORDER BY "at")
                        > INTERVAL 4 SECONDS, true) AS is_first FROM rows)))"""
    else:
        given, width, slide = WINDOWS[window]
        cut = stream.window("w", given)
        second = 'epoch("at")::BIGINT'
        source = (
            f"(SELECT *, make_timestamp(unnest(range({second} // {slide} * {slide}, "
            f"{second} - {width}, -{slide})) * {SECOND}) AS w FROM rows)"
        )
    top = cut.top(n, by=by, descending=descending, rank="rank")
    top.write("out", job.out)
    top.side_output(pen.LATE).write("late", job.late)
    ties = [name for name in SCHEMA.names if name != "key" or not is_keyed]
    query = ranked_sql(order, f"{per}, w", ties, source).replace("$n", str(n))
    job.live(lives)
    found = [
        {**{name: row[name] for name in (*SCHEMA.names, "rank")}, "w": row["window_start"]}
        for row in job.out.rows()
    ]
    assert bag(found) == bag(ask(query, rows))
    assert job.late.rows() == []


AS_THEY_CAME = "came"
BY_TIME = '"at", id, price NULLS FIRST, n NULLS FIRST'


def firsts_sql(order: str, ttl: int | None) -> str:
    """Return the first rows of each key in an order, those of a time to live or more apart."""
    ends = f'placed."at" + INTERVAL {ttl or 0} SECONDS'
    is_next = 'placed."at" >= walk.ends' if ttl is not None else "false"
    return f"""
        WITH RECURSIVE placed AS (
            SELECT *, row_number() OVER (PARTITION BY key ORDER BY {order}) AS place
            FROM (SELECT *, row_number() OVER () AS came FROM rows)
        ), walk AS (
            SELECT *, true AS is_first, {ends} AS ends FROM placed WHERE place = 1
            UNION ALL
            SELECT placed.*, {is_next}, CASE WHEN {is_next} THEN {ends} ELSE walk.ends END
            FROM walk JOIN placed
            ON placed.key IS NOT DISTINCT FROM walk.key AND placed.place = walk.place + 1
        )
        SELECT id, key, price, n, "at" FROM walk WHERE is_first
    """


def in_micros(rows: Iterable[Row]) -> list[Row]:
    return [{**row, "at": _micros(row["at"])} for row in rows]


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    ttl=st.sampled_from([None, 1, 7, 30]),
    budget=st.integers(1, 25),
    lives=LIVES,
)
def test_the_first_rows_to_come_from_a_split_do_not_depend_on_how_the_job_is_run(
    *, rows: list[Row], ttl: int | None, budget: int, lives: list[Life]
) -> None:
    job = Job(rows, budget, splits=1)
    lifetime = "forever" if ttl is None else f"{ttl}s"
    job.stream.deduplicate("first", "key", ttl=lifetime).write("out", job.out)
    query = firsts_sql(AS_THEY_CAME, ttl)
    for read, written in job.live(lives):
        assert bag(written) == bag(ask(query, read))
    assert bag(job.out.rows()) == bag(ask(query, rows))


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    ttl=st.sampled_from([None, 1, 7, 30]),
    delay=st.sampled_from(["0s", "5s", "100s"]),
    splits=st.integers(1, 3),
    budget=st.integers(1, 25),
    lives=LIVES,
)
def test_the_earliest_rows_depend_on_the_rows_alone_if_none_is_late(
    *,
    rows: list[Row],
    ttl: int | None,
    delay: str,
    splits: int,
    budget: int,
    lives: list[Life],
) -> None:
    # Both zeros are one value, and of equal rows either may be kept.
    rows = [{**row, "price": 0.0} if row["price"] == 0 else row for row in rows]
    job = Job(rows, budget, splits=splits)
    timed = job.stream.watermark("again", "at", delay=delay)
    lifetime = "forever" if ttl is None else f"{ttl}s"
    once = timed.deduplicate("once", "key", keep="earliest", ttl=lifetime)
    once.write("out", job.out)
    once.side_output(pen.LATE).write("late", job.late)
    job.live(lives)
    late = bag(in_micros(job.late.rows()))
    assert delay != "100s" or not late
    on_time = bag(rows) - late
    assert on_time + late == bag(rows)
    wanted = ask(firsts_sql(BY_TIME, ttl), list(map(dict, on_time.elements())))
    assert bag(job.out.rows()) == bag(wanted)


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=ROWS,
    ttl=st.sampled_from([1, 7, 30]),
    delay=st.sampled_from(["0s", "5s", "100s"]),
    budget=st.integers(1, 25),
    lives=LIVES,
)
def test_in_any_disorder_no_two_rows_of_a_key_are_within_the_time_to_live_and_none_is_lost(
    *,
    rows: list[Row],
    ttl: int,
    delay: str,
    budget: int,
    lives: list[Life],
) -> None:
    job = Job(rows, budget)
    timed = job.stream.watermark("again", "at", delay=delay)
    once = timed.deduplicate("first", "key", ttl=f"{ttl}s")
    once.write("out", job.out)
    once.side_output(pen.LATE).write("late", job.late)
    job.live(lives)
    emitted: dict[Any, list[int]] = {}
    for row in job.out.rows():
        emitted.setdefault(row["key"], []).append(_micros(row["at"]))
    for times in emitted.values():
        ordered = sorted(times)
        gaps = [b - a for a, b in pairwise(ordered)]
        assert all(gap >= ttl * SECOND for gap in gaps)
    late = bag(job.late.rows())
    for row in job.seen.rows():
        end = max(emitted.get(row["key"], [-(10**12)])) + ttl * SECOND
        assert _micros(row["at"]) < end or late[next(iter(bag([row])))], row


def _micros(instant: Any) -> int:
    micros: Any = pa.scalar(instant, pa.timestamp("us")).value
    return int(micros)


def test_of_rows_at_one_instant_the_least_of_each_key_is_the_earliest() -> None:
    rows = [
        {"id": n, "key": "ab"[n % 2], "price": n % 3 / 2, "n": n % 2, "at": n % 4 * SECOND}
        for n in range(40)
    ]
    job = Job(rows, 100)
    once = job.stream.deduplicate("once", "key", keep="earliest", ttl="forever")
    once.write("out", job.out)
    job.live([])
    query = (
        "SELECT * FROM rows QUALIFY row_number() OVER "
        '(PARTITION BY key ORDER BY "at", id, price, n) = 1'
    )
    assert bag(job.out.rows()) == bag(ask(query, rows))
