"""DataFrames as sources on Spark: every row once, one job per epoch, offsets that survive."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

import penstock as pen
from penstock.operators import ArrowCollector, ArrowOperator, EndOfData, OperatorContext
from tests.builders.spark_session import (
    NUMBERS,
    DriverDiedError,
    Ledger,
    job_ids,
    numbers,
    shared_session,
    start,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def tens(session: SparkSession, offset: Any) -> Any:
    """Give ten numbers per epoch, four times."""
    index = offset or 0
    if index == 4:
        return EndOfData()
    return numbers(index * 10, index * 10 + 10), index + 1


def a_pipeline(
    name: str, source: Any, ledger: Any, *, parallelism: int = 2
) -> pen.Pipeline:
    pipeline = pen.Pipeline(name, parallelism=parallelism)
    pipeline.read("numbers", source).write("ledger", pen.for_each_epoch(ledger))
    return pipeline


def test_frames_and_other_sources_share_one_job_per_epoch(tmp_path: Path) -> None:
    """Single partitions on both sides of an ordinary source, none of which may be merged.

    The first frame is of a session that would cut the epoch into several jobs.
    """
    ledger = Ledger()
    adaptive = shared_session().newSession()
    adaptive.conf.set("spark.sql.adaptive.enabled", "true")
    counts = adaptive.range(50).groupBy("id").count().selectExpr("id AS number")
    pipeline = pen.Pipeline("frames-among-others", parallelism=1)
    first = pipeline.read("first", pen.dataframe(counts))
    counted = pipeline.read("counted", pen.impulse(count=50)).select(number="counter")
    shuffled = numbers(100, 200).groupBy("number").agg(F.count("*"))
    wide = pipeline.read("wide", pen.dataframe(shuffled, schema=NUMBERS), parallelism=2)
    first.union(counted, wide).write("ledger", pen.for_each_epoch(ledger))

    before = job_ids()
    status = start(pipeline, tmp_path)
    jobs = len(job_ids() - before)
    assert status.phase is pen.JobPhase.FINISHED
    assert ledger.numbers == sorted([*range(50), *range(50), *range(100, 200)])
    # Besides the epochs, the ledger collects each frame it is given: a job each.
    assert jobs == status.epochs_run + len(ledger.calls)


def test_frames_that_spark_knows_to_be_empty_are_epochs_without_rows(
    tmp_path: Path,
) -> None:
    """It would plan them, and all above them, without any partition."""

    def sometimes(session: SparkSession, offset: Any) -> Any:
        index = offset or 0
        if index == 5:
            return EndOfData()
        frames = [
            numbers(0, 10),
            numbers(10, 20).where("false"),
            session.createDataFrame([(1,)], "number BIGINT").limit(0),
            session.createDataFrame([], "number BIGINT"),
            numbers(10, 20),
        ]
        return frames[index], index + 1

    ledger = Ledger()
    source = pen.dataframes(sometimes, schema=NUMBERS)
    status = start(a_pipeline("frames-empty", source, ledger), tmp_path)
    assert status.phase is pen.JobPhase.FINISHED
    assert (status.torn_epochs, status.restarts) == (0, 0)
    assert ledger.numbers == list(range(20))


def test_offsets_survive_a_crash_and_another_parallelism(tmp_path: Path) -> None:
    asked: list[Any] = []

    def noting(session: SparkSession, offset: Any) -> Any:
        asked.append(offset)
        return tens(session, offset)

    def crash_after_two(status: pen.JobStatus) -> None:
        if status.epochs_published == 2:
            raise DriverDiedError

    ledger = Ledger()
    source = pen.dataframes(noting, schema=NUMBERS)
    with pytest.raises(DriverDiedError):
        start(a_pipeline("frames-rescaled", source, ledger), tmp_path, crash_after_two)
    assert asked == [None, 1]
    wider = a_pipeline("frames-rescaled", source, ledger, parallelism=3)
    assert start(wider, tmp_path).phase is pen.JobPhase.FINISHED
    assert asked[2:5] == [2, 3, 4]
    assert ledger.numbers == list(range(40))
    assert list(ledger.rows) == [1, 2, 3, 4]


class Watermarks(ArrowOperator):
    """Emits how far event time had come before each epoch."""

    def name(self) -> str:
        return "watermarks"

    def output_schema(self, inputs: Any) -> pen.StreamSchema:
        return pen.StreamSchema(NUMBERS)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        before = ctx.previous_watermark
        found = -1 if before is None else before.micros
        collector.collect(pa.record_batch({"number": [found]}, schema=NUMBERS))


def test_event_time_advances_in_all_subtasks_though_each_frame_has_one_row(
    tmp_path: Path,
) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)

    def minute(session: SparkSession, offset: Any) -> Any:
        index = offset or 0
        if index == 3:
            return EndOfData()
        at = (begin + timedelta(minutes=index)).replace(tzinfo=None)
        return session.createDataFrame([(1, at)], "key INT, at TIMESTAMP_NTZ"), index + 1

    ledger = Ledger()
    pipeline = pen.Pipeline("frames-time", parallelism=3)
    schema = pa.schema({"key": pa.int32(), "at": pa.timestamp("us")})
    read = pipeline.read(
        "minutes",
        pen.dataframes(minute, schema=schema),
        event_time="at",
        watermark_delay="1s",
    )
    marks = read.key_by("key").process("marks", Watermarks(), parallelism=1)
    marks.write("ledger", pen.for_each_epoch(ledger))
    start(pipeline, tmp_path)
    zero = int(begin.timestamp()) * 1_000_000
    # Two of three subtasks have no row of the first frame, and learn of it with the second.
    assert ledger.rows == {1: [-1], 2: [-1], 3: [zero - 1_000_000]}


def run_with(frame: DataFrame, folder: Path, schema: Any, name: str) -> None:
    source = pen.dataframes(
        lambda _, offset: (frame, 1) if offset is None else None, schema=schema
    )
    pipeline = pen.Pipeline(name)
    pipeline.read("numbers", source).write("out", pen.blackhole())
    start(pipeline, folder)


def test_frames_that_do_not_fit_are_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    columns: dict[str, pa.DataType] = {"number": pa.int32(), "name": pa.string()}
    schema = pa.schema(columns)
    with pytest.raises(pen.PenstockError, match="does not fit its schema") as raised:
        run_with(numbers(0, 3), tmp_path, schema, "frames-misfit")
    assert len(raised.value.context["problems"]) == 2  # type: ignore[arg-type]  # a tuple
    assert raised.value.context["operator"] == "numbers"


def test_nulls_where_none_are_declared_are_refused(tmp_path: Path) -> None:
    odd = numbers(0, 9).select(F.when(F.col("number") > 5, F.col("number")).alias("number"))
    with pytest.raises(pen.PenstockError, match="'number' has 6 nulls"):
        run_with(odd, tmp_path, NUMBERS, "frames-null")


@pytest.mark.parametrize("kind", ["expression", "function"])
def test_a_frame_that_fails_by_itself_stops_the_job_without_trying_again(
    kind: str, tmp_path: Path
) -> None:
    three = numbers(0, 3)
    failing = F.expr("CAST('x' || number AS BIGINT)")
    if kind == "function":
        failing = F.udf(lambda number: int(f"x{number}"), "BIGINT")("number")
    frame = three.select(failing.alias("number"))
    with pytest.raises(pen.PenstockError, match=r"DataFrame that job .* failed") as raised:
        run_with(frame, tmp_path, NUMBERS, f"frames-failing-{kind}")
    expected = {"expression": "CAST_INVALID_INPUT", "function": "ValueError: invalid"}
    assert expected[kind] in raised.value.message


def test_a_streaming_frame_is_refused_where_one_that_ends_is_needed(tmp_path: Path) -> None:
    stream = shared_session().readStream.schema("number BIGINT").json(str(tmp_path))
    with pytest.raises(pen.PenstockError, match=r"Pipeline\.attach"):
        pen.dataframe(stream)
    with pytest.raises(pen.PenstockError, match=r"Pipeline\.attach"):
        run_with(stream, tmp_path, NUMBERS, "frames-stream")


def test_what_the_function_of_the_frames_returns_is_checked(tmp_path: Path) -> None:
    wrong: Any = lambda *_: 7  # noqa: E731 (as users write it)
    pipeline = a_pipeline("frames-wrong", pen.dataframes(wrong, schema=NUMBERS), Ledger())
    with pytest.raises(pen.PenstockError, match="returned int: return"):
        start(pipeline, tmp_path)


def test_records_of_debezium_in_a_frame_become_a_table(tmp_path: Path) -> None:
    row = "struct<id: bigint, city: string>"
    records: list[Any] = [
        (None, (1, "Rom"), "c"),
        ((1, "Rom"), (3, "Ulm"), "u"),
        (None, None, None),
        (None, (2, "Bonn"), "r"),
        ((2, "Bonn"), None, "d"),
        (None, (4, "Bern"), "r"),
        (None, (4, "Basel"), "u"),
        (None, None, "?"),
    ]
    frame = shared_session().createDataFrame(
        records, f"before {row}, after {row}, op string"
    )
    pipeline = pen.Pipeline("records-of-a-frame", parallelism=2)
    read = pipeline.read("records", pen.dataframe(frame.coalesce(1)), parallelism=1)
    table = read.from_debezium("table", key="id", on_bad="divert")
    table.write("out", pen.files(str(tmp_path / "table")))
    table.side_output(pen.BAD).write("bad", pen.files(str(tmp_path / "bad")))
    start(pipeline, tmp_path)
    found = pen.read_latest(str(tmp_path / "table"), key="id").to_pylist()
    assert sorted((row["id"], row["city"]) for row in found) == [(3, "Ulm"), (4, "Basel")]
    (bad,) = pen.read_committed(str(tmp_path / "bad")).to_pylist()
    assert (bad["op"], bad["error"]) == ("?", "its op is none of c, r, u, d")
