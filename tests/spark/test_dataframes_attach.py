"""Streaming queries that feed a job: every batch once, wherever either of them dies."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import penstock as pen
from tests.builders.spark_session import (
    NUMBERS,
    PATIENCE_SECONDS,
    CrashError,
    DriverDiedError,
    Ledger,
    as_query,
    attached_pipeline,
    claim,
    numbers,
    shared_session,
    wait_for_mark,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def a_stream(folder: Path) -> DataFrame:
    """Return the numbers of JSON files, one file per batch."""
    folder.mkdir(exist_ok=True)
    reader = shared_session().readStream.schema("number BIGINT, other STRING")
    return reader.option("maxFilesPerTrigger", 1).json(str(folder))


def write_batch(folder: Path, number: int, rows: range) -> None:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"number": row}) + "\n" for row in rows)
    (folder / f"{number}.json").write_text(lines)


class Batches:
    """One job that is fed by hand as Spark would do it, started as often as it dies."""

    def __init__(self, name: str, folder: Path, ledger: Any) -> None:
        self.pipeline = attached_pipeline(name, ledger)
        self._checkpoint = str(folder / "checkpoints")

    def start(self, on_status: Any = None) -> pen.AttachedJob:
        return self.pipeline.start_attached(
            self._checkpoint, session=shared_session(), on_status=on_status
        )

    def feed(self, *batches: int, query: str = "q", on_status: Any = None) -> None:
        """Start the job, hand batches over, ten numbers each, and stop it."""
        with as_query(query), self.start(on_status) as job:
            feed = job.feed("numbers")
            for batch in batches:
                feed(numbers(batch * 10, batch * 10 + 10), batch)


def test_a_query_that_is_started_again_goes_on_with_its_next_batch(tmp_path: Path) -> None:
    ledger = Ledger()
    incoming = tmp_path / "incoming"
    pipeline = attached_pipeline("attach-query", ledger)
    for batch in range(4):
        write_batch(incoming, batch, range(batch * 10, batch * 10 + 10))
        if batch == 2:
            continue
        job = pipeline.attach(
            a_stream(incoming),
            checkpoint=str(tmp_path / "checkpoints"),
            query_checkpoint=str(tmp_path / "query"),
            query_trigger={"availableNow": True},
        )
        status = job.wait()
        assert status.phase is pen.JobPhase.STOPPED
        assert ledger.numbers == list(range(batch * 10 + 10))
    # One epoch per batch: a batch is never cut, nor put together with another one.
    assert sorted(sorted(rows) for rows in ledger.rows.values()) == [
        list(range(batch * 10, batch * 10 + 10)) for batch in range(4)
    ]


def test_a_batch_whose_return_was_lost_is_not_doubled(tmp_path: Path) -> None:
    """The job dies after it committed the batch and before Spark knows."""
    ledger = Ledger()
    batches = Batches("attach-after", tmp_path, ledger)

    def crash_after_second(status: pen.JobStatus) -> None:
        if len(ledger.calls) == 2:
            raise DriverDiedError("dies")

    with pytest.raises(DriverDiedError) as raised:
        batches.feed(0, 1, on_status=crash_after_second)
    assert "failed: dies" in str(raised.value.__context__)
    assert ledger.numbers == list(range(20))
    batches.feed(1, 2)
    assert ledger.numbers == list(range(30))
    assert len(ledger.calls) == 3


def test_a_batch_that_was_published_but_not_committed_is_committed_then(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    batches = Batches("attach-commit", tmp_path, ledger)

    def crash_once(epoch: int) -> None:
        if len(ledger.calls) == 2:
            raise CrashError("dies")

    ledger.after = crash_once
    with pytest.raises(pen.PenstockError, match="operator 'ledger' raised CrashError"):
        batches.feed(0, 1)
    batches.feed(1)
    assert len(ledger.calls) == 3
    assert ledger.calls[1] == ledger.calls[2]
    assert ledger.numbers == list(range(20))


def test_a_batch_that_was_not_published_is_read_again(tmp_path: Path) -> None:
    flag = tmp_path / "has-failed"
    ledger = Ledger()
    batches = Batches("attach-before", tmp_path, ledger)
    batches.pipeline = pipeline = pen.Pipeline("attach-before", parallelism=2)

    def fail_once(batch: Any) -> Any:
        if batch.column("number").to_pylist()[0] >= 10 and not flag.exists():
            flag.touch()
            raise CrashError("dies")
        return batch

    read = pipeline.read("numbers", pen.attached(schema=NUMBERS))
    read.map_batches(fail_once).write("ledger", pen.for_each_epoch(ledger))
    with pytest.raises(pen.PenstockError, match="raised CrashError"):
        batches.feed(0, 1)
    assert ledger.numbers == list(range(10))
    batches.feed(1, 2)
    assert ledger.numbers == list(range(30))


def test_an_empty_batch_is_remembered_and_others_are_refused(tmp_path: Path) -> None:
    ledger = Ledger()
    batches = Batches("attach-refused", tmp_path, ledger)
    with as_query("q"), batches.start() as job:
        feed = job.feed()
        feed(numbers(0, 10), 0)
        feed(numbers(0, 0), 1)
        feed(numbers(10, 20), 2)
    with pytest.raises(
        pen.PenstockError, match="batch 2 of query r cannot follow batch 2 of query q"
    ):
        batches.feed(2, query="r")
    with pytest.raises(
        pen.PenstockError, match="batch 4 of query q cannot follow batch 2 of query q"
    ):
        batches.feed(4)
    assert ledger.numbers == list(range(20))
    assert len(ledger.calls) == 2


def test_a_job_without_a_batch_begins_with_the_first_one(tmp_path: Path) -> None:
    batches = Batches("attach-late", tmp_path, Ledger())
    with pytest.raises(
        pen.PenstockError, match="batch 4 of query q cannot be the first one"
    ):
        batches.feed(4)


def test_what_cannot_be_attached_is_refused(tmp_path: Path) -> None:
    pipeline = attached_pipeline("attach-bad", Ledger())
    options: Any = {
        "checkpoint": str(tmp_path / "c"),
        "query_checkpoint": str(tmp_path / "q"),
    }
    with pytest.raises(
        pen.PenstockError, match=r"this one ends: read it with pen\.dataframe"
    ):
        pipeline.attach(numbers(0, 1), **options)
    with pytest.raises(pen.PenstockError, match="'other' is none of them"):
        pipeline.attach({"other": a_stream(tmp_path / "in")}, **options)
    with pytest.raises(pen.PenstockError, match=r"none is attached"):
        pipeline.run(str(tmp_path / "c"), session=shared_session())
    with pipeline.start_attached(str(tmp_path / "c"), session=shared_session()) as job:
        feed = job.feed()
        with pytest.raises(pen.PenstockError, match="came from no streaming query"):
            feed(numbers(0, 1), 0)


def test_two_queries_feed_two_sources_of_one_job(tmp_path: Path) -> None:
    ledger = Ledger()
    pipeline = pen.Pipeline("attach-two", parallelism=2)
    left = pipeline.read("left", pen.attached(schema=NUMBERS))
    late = pen.attached(schema=NUMBERS, begins_late=True)
    right = pipeline.read("right", late, parallelism=1)
    left.union(right).write("ledger", pen.for_each_epoch(ledger))
    checkpoint = str(tmp_path / "checkpoints")
    with pipeline.start_attached(checkpoint, session=shared_session()) as job:
        with pytest.raises(pen.PenstockError, match="'left', 'right'; name one of them"):
            job.feed()
        with as_query("l"):
            job.feed("left")(numbers(0, 10), 0)
        with as_query("r"):
            job.feed("right")(numbers(10, 20), 3)
            job.feed("right")(numbers(20, 30), 4)
    assert ledger.numbers == list(range(30))


class Endless:
    """A query without an end that feeds a job, and the folder that its batches come from."""

    def __init__(self, name: str, folder: Path) -> None:
        self.ledger = Ledger()
        self.pipeline = attached_pipeline(name, self.ledger)
        self.folder = folder
        self.batches = 0

    def write(self) -> None:
        """Write a batch of ten numbers."""
        rows = range(self.batches * 10, self.batches * 10 + 10)
        write_batch(self.folder / "incoming", self.batches, rows)
        self.batches += 1

    def attach(self, **options: Any) -> pen.AttachedJob:
        return self.pipeline.attach(
            a_stream(self.folder / "incoming"),
            checkpoint=str(self.folder / "checkpoints"),
            query_checkpoint=str(self.folder / "query"),
            **options,
        )


@pytest.mark.parametrize("mode", pen.StopMode)
def test_an_attached_job_stops_in_every_mode_and_both_go_on(
    tmp_path: Path, mode: pen.StopMode
) -> None:
    endless = Endless(f"attach-{mode}", tmp_path)
    for generation in (1, 2):
        endless.write()
        job = endless.attach()
        assert job.status.generation == generation
        with pytest.raises(TimeoutError, match="has not ended within"):
            job.wait(0.01)
        job.queries["numbers"].processAllAvailable()
        job.stop(mode)
        assert job.wait(PATIENCE_SECONDS).phase is pen.JobPhase.STOPPED
        assert not job.queries["numbers"].isActive
        assert endless.ledger.numbers == list(range(endless.batches * 10))


def test_a_stop_at_once_does_not_wait_for_the_batch_under_way(tmp_path: Path) -> None:
    endless = Endless("attach-hasty", tmp_path)
    marks = tmp_path / "marks"
    marks.mkdir()

    def hang_once(epoch: int) -> None:
        if claim(marks, "committing"):
            wait_for_mark(marks, "let-go")

    endless.ledger.before = hang_once
    endless.write()
    job = endless.attach()
    wait_for_mark(marks, "committing")
    job.stop(pen.StopMode.CHECKPOINT)
    job.stop(pen.StopMode.IMMEDIATE)
    with pytest.raises(TimeoutError):
        job.wait(0.01)
    claim(marks, "let-go")
    assert job.wait(PATIENCE_SECONDS).phase is pen.JobPhase.STOPPED
    again = endless.attach()
    again.queries["numbers"].processAllAvailable()
    again.stop()
    again.wait(PATIENCE_SECONDS)
    assert endless.ledger.numbers == list(range(10))


def test_a_query_that_fails_is_raised_with_the_name_of_its_source(tmp_path: Path) -> None:
    pipeline = attached_pipeline("attach-broken", Ledger())
    rate = shared_session().readStream.format("rate").option("rowsPerSecond", 5).load()
    stream = rate.selectExpr("IF(value < 0, 1L, raise_error('broken')) AS number")
    job = pipeline.attach(
        stream, checkpoint=str(tmp_path / "c"), query_checkpoint=str(tmp_path / "q")
    )
    with pytest.raises(pen.PenstockError, match="broken"):
        job.wait(PATIENCE_SECONDS)
    assert not job.is_running


def test_a_job_that_cannot_start_is_refused_by_attach_itself(tmp_path: Path) -> None:
    endless = Endless("attach-unfit", tmp_path)
    endless.write()
    with endless.attach() as job:
        job.queries["numbers"].processAllAvailable()
    endless.pipeline = pen.Pipeline("attach-unfit")
    read = endless.pipeline.read("renamed", pen.attached(schema=NUMBERS))
    read.write("out", pen.blackhole())
    with pytest.raises(pen.PenstockError, match=r"'numbers'.* has state"):
        endless.attach()


def test_the_old_way_to_wait_is_answered_by_the_new_one(tmp_path: Path) -> None:
    with (
        Batches("attach-old", tmp_path, Ledger()).start() as job,
        pytest.raises(AttributeError, match="'await_termination': wait does it"),
    ):
        job.await_termination()  # type: ignore[attr-defined]
