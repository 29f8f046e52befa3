"""Joins on an embedded Spark: their driver dies, they go on, and are what SQL says."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.joins import JoinJob, interval_sql, run_sql, session_sql, window_sql
from tests.builders.profile import takes_long
from tests.builders.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = [
    [
        {"key": n % 7 or None, "text": "ab"[n % 2], "at": n * step % 101, "n": n % 6}
        for n in range(150)
    ]
    for step in (7, 11)
]
SMALL = DriverSettings(
    budget=SourceBudget(rows=60), adapts_budget=False, target_epoch_micros=1
)
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "within": ({"within": ("-5s", "3s")}, interval_sql("full", -5, 3, where=False)),
    "sliding": (
        {"window": pen.sliding("10s", "5s")},
        window_sql("full", 10, 5, where=False),
    ),
    "session": ({"window": pen.session("2s")}, session_sql("full", 2, where=False)),
}


class StopNowError(BaseException):
    """Ends a driver in the midst of its job."""


@pytest.mark.parametrize("case", CASES)
def test_a_join_whose_driver_died_goes_on_and_is_what_sql_says(
    case: str, tmp_path: Path
) -> None:
    options, sql = CASES[case]
    job = JoinJob(
        *ROWS, watermark_delay="200s", parallelism=2, splits=2, how="full", **options
    )

    run_twice(job.pipeline, tmp_path)
    assert job.found() == run_sql(sql, *ROWS)


def run_twice(pipeline: pen.Pipeline, checkpoints: Path) -> None:
    """Run a job whose driver dies after two epochs, then to its end."""

    def run(**more: Any) -> None:
        chosen = RunOptions(
            checkpoint=str(checkpoints), session=shared_session(), settings=SMALL, **more
        )
        run_on_spark(pipeline.graph(), pipeline.registry, chosen)

    def stop_early(status: pen.JobStatus) -> None:
        if status.epochs_published == 2:
            raise StopNowError

    with pytest.raises(StopNowError):
        run(on_status=stop_early)
    run()


async def _ask(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.select("key", asked=pl.col("key") * 2)


def test_rows_are_looked_up_in_all_kinds_of_lookups_on_spark(tmp_path: Path) -> None:
    session = shared_session()
    names = pl.DataFrame({"key": [1, 2], "name": ["one", "two"]})
    names.write_parquet(tmp_path / "names.parquet")
    out = pen.list_sink(f"looked-up-{new_token()}")
    p = pen.Pipeline("lookups", parallelism=2)
    rows = p.read("rows", pen.list_source([{"key": n % 4} for n in range(12)], splits=2))
    lasts = p.read("lasts", pen.list_source([{"key": 3, "last": "three"}]))
    frame = session.createDataFrame([(0, "zero")], "key long, framed string")
    (
        rows.join("files", pen.lookup_files(tmp_path / "*.parquet"), on="key", how="left")
        .join("frame", pen.lookup_frame(frame), on="key", how="left")
        .join("stream", pen.lookup_stream(lasts), on="key", how="left")
        .join(
            "function",
            pen.lookup_function(_ask, schema={"key": int, "asked": int}),
            on="key",
        )
        .write("out", out)
    )
    chosen = RunOptions(checkpoint=str(tmp_path / "checkpoints"), session=session)
    run_on_spark(p.graph(), p.registry, chosen)
    found = Counter(tuple(row.values()) for row in out.rows())
    assert found == {
        (0, None, "zero", None, 0): 3,
        (1, "one", None, None, 2): 3,
        (2, "two", None, None, 4): 3,
        (3, None, None, "three", 6): 3,
    }


@takes_long
def test_a_dataframe_is_computed_again_when_a_reload_is_due_and_sees_new_files(
    tmp_path: Path,
) -> None:
    session, folder = shared_session(), str(tmp_path / "names")
    rows = session.createDataFrame([(0, "old"), (1, "old")], "key long, name string")
    rows.coalesce(1).write.parquet(folder)
    # Two shuffles, whose results Spark would use again.
    frame = session.read.parquet(folder).groupBy("key").agg({"name": "max"})
    names = frame.withColumnRenamed("max(name)", "name").orderBy("key")
    out = pen.list_sink(f"computed-again-{new_token()}")
    p = pen.Pipeline("reloaded", parallelism=2)
    left = p.read("rows", pen.list_source([{"n": n, "key": n % 2} for n in range(200)]))
    lookup = pen.lookup_frame(names, reload="1ms")
    left.join("named", lookup, on="key").write("out", out)

    def change(status: pen.JobStatus) -> None:
        if status.epochs_published == 1 and status.phase == "running":
            more = session.createDataFrame([(1, "sold")], "key long, name string")
            more.coalesce(1).write.mode("append").parquet(folder)

    chosen = RunOptions(
        checkpoint=str(tmp_path / "checkpoints"),
        session=session,
        settings=SMALL,
        on_status=change,
    )
    assert run_on_spark(p.graph(), p.registry, chosen).phase == "finished"
    found = {row["n"]: row["name"] for row in out.rows()}
    assert len(out.rows()) == len(found) == 200
    assert {found[n] for n in range(60)} == {"old"}
    assert [found[n] for n in (198, 199)] == ["old", "sold"]


def test_a_join_of_tables_whose_driver_died_leads_to_the_join_of_what_they_are(
    tmp_path: Path,
) -> None:
    users = [{"user": n % 9, "city": n} for n in range(120)]
    orders = [{"order": n, "user": n * 7 % 12} for n in range(120)]
    pipeline = pen.Pipeline("tables", parallelism=2)
    cities = pipeline.read("users", pen.list_source(users)).from_upserts("c", key="user")
    ordered = pipeline.read("orders", pen.list_source(orders))
    out = pen.list_sink("tables-on-spark")
    cities.join("join", ordered, on="user", how="full", ttl=(None, None)).write("out", out)
    run_twice(pipeline, tmp_path)
    found: Counter[Any] = Counter()
    for row in out.rows():
        sign = 1 if row["change"] in ("insert", "update-after") else -1
        found[row["user"], row["city"], row["order"]] += sign
    last = {row["user"]: row["city"] for row in users}
    wanted = {(row["user"], last.get(row["user"]), row["order"]) for row in orders}
    assert set((+found).elements()) == wanted
    assert sum(found.values()) == len(orders)
