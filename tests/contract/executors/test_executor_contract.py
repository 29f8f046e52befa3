"""What every executor owes the driver: all tasks run, in order per producer, errors as agreed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.api.stream import Stream
from penstock.connectors.memory import list_source
from penstock.core.key_hash import owners_of
from penstock.core.schema import StreamSchema
from penstock.errors import ExternalError, StorageError, UserCodeError
from penstock.graph.logical import LogicalGraph
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import ManualPacer
from penstock.runtime.driver.outcomes import EpochRan, Failed, find_agreement
from penstock.runtime.driver.policies import is_transient
from penstock.runtime.driver.session import JobSession
from penstock.runtime.plan.executor import from_error_part
from penstock.testing import Fault, FaultMode, FaultyStore
from tests.builders.pipeline_graphs import (
    JOB,
    SHAPES,
    Row,
    Shape,
    counting,
    some_rows,
)
from tests.builders.pipeline_operators import ROWS, BookSink, RunningCount, open_book
from tests.contract.executors.conftest import MakeExecutor, MakeOnSpark
from tests.contract.executors.epoch_runner import EpochRunner, a_runner

SHAPE_NAMES = [shape.name for shape in SHAPES]
READ = some_rows(60, users=9)


@pytest.fixture(autouse=True)
def _unused_book() -> None:
    open_book("unused")


def read_and_send(send: Callable[[Stream], Stream], parallelism: int = 3) -> LogicalGraph:
    """Two producers, one split each, and a sink behind an edge of the wanted kind."""
    p = Pipeline(JOB, parallelism=2)
    read = p.read("read", list_source(READ, ROWS, splits=2, batch_rows=7))
    send(read).write("out", BookSink("unused"), parallelism=parallelism)
    return p.graph()


def keyed(stream: Stream) -> Stream:
    return stream.key_by("user").process("keep", Keep(), parallelism=3)


class Keep(ArrowOperator):
    """Passes rows on."""

    def name(self) -> str:
        return "keep"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


def numbers(rows: Sequence[Row]) -> list[int]:
    return [row["number"] for row in rows]


def in_order(rows: dict[int, list[Row]]) -> bool:
    """Tell whether the rows of each producer arrived in order; split i has every second row."""
    return all(
        found == sorted(found)
        for part in rows.values()
        for split in (0, 1)
        for found in [[n for n in numbers(part) if (n - 1) % 2 == split]]
    )


def test_rows_by_key_reach_the_owner_of_their_key(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    runner = a_runner(read_and_send(keyed), executor_under_test, tmp_path)
    rows = runner.rows_by_subtask(runner.run(), "out")
    schema = StreamSchema(ROWS, key_columns=("user",))
    for subtask, part in rows.items():
        if part:
            batch = pa.RecordBatch.from_pylist(part, schema=ROWS)
            assert np.all(owners_of(schema.key_hashes_of(batch), 3) == subtask)
    assert Counter(n for part in rows.values() for n in numbers(part)) == Counter(
        numbers(READ)
    )
    assert in_order(rows)


def test_rebalanced_rows_are_dealt_evenly(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    graph = read_and_send(lambda stream: stream.rebalance(parallelism=3))
    runner = a_runner(graph, executor_under_test, tmp_path)
    rows = runner.rows_by_subtask(runner.run(), "out")
    sizes = sorted(len(part) for part in rows.values())
    assert sum(sizes) == len(READ)
    assert sizes[-1] - sizes[0] <= 10  # one odd row for each batch that was dealt
    assert in_order(rows)
    assert {n for part in rows.values() for n in numbers(part)} == {*numbers(READ)}


def test_broadcast_rows_reach_every_subtask(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    graph = read_and_send(lambda stream: stream.broadcast())
    runner = a_runner(graph, executor_under_test, tmp_path)
    rows = runner.rows_by_subtask(runner.run(), "out")
    assert {subtask: sorted(numbers(part)) for subtask, part in rows.items()} == {
        subtask: sorted(numbers(READ)) for subtask in range(3)
    }
    assert in_order(rows)


def test_forwarded_rows_stay_in_their_subtask_across_chains(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    # A union of two sources is a chain of its own; its forward edges are exchanges.
    p = Pipeline(JOB, parallelism=2)
    a = p.read("a", list_source(READ, ROWS, splits=2))
    b = p.read("b", list_source(READ, ROWS, splits=2))
    a.union(b).write("out", BookSink("unused"))
    runner = a_runner(p.graph(), executor_under_test, tmp_path)
    rows = runner.rows_by_subtask(runner.run(), "out")
    for subtask in (0, 1):
        expected = numbers(READ)[subtask::2]
        assert sorted(numbers(rows[subtask])) == sorted([*expected, *expected])


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize("parallelism", [(1, 1, 1), (2, 3, 1), (3, 2, 4)])
def test_every_task_reports_once_and_all_agree(
    executor_under_test: MakeExecutor,
    shape: Shape,
    parallelism: tuple[int, int, int],
    tmp_path: Path,
) -> None:
    graph = shape.graph("unused", parallelism)
    runner = a_runner(graph, executor_under_test, tmp_path)
    reports = runner.run()
    plan = runner.environment.job
    assert sorted((report.level, report.task) for report in reports) == [*plan.tasks()]
    agreed = runner.agreed(reports)
    for (level, task), report in agreed.reports.items():
        chain, _ = plan.task(level, task)
        assert tuple(part.operator for part in report.operators) == chain.operators


def test_an_epoch_that_is_run_again_gives_the_same_rows_in_new_attempts(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    runner = a_runner(read_and_send(keyed), executor_under_test, tmp_path)
    first, second = runner.run(), runner.run()
    assert not {report.token for report in first} & {report.token for report in second}
    for reports in (first, second):
        rows = runner.rows_by_subtask(reports, "out")
        found = sorted(n for part in rows.values() for n in numbers(part))
        assert found == sorted(numbers(READ))


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_whole_job_gives_its_output(
    executor_under_test: MakeExecutor, shape: Shape, tmp_path: Path
) -> None:
    name = f"contract-{shape.name}"
    book = open_book(name)
    runner = a_runner(shape.graph(name), executor_under_test, tmp_path)
    driver = JobDriver(runner.environment, pacer=ManualPacer(runner.clock))
    assert driver.run().phase is JobPhase.FINISHED
    assert book.output() == shape.expected


class Fragile(RunningCount):
    """Cannot bear the row of one number."""

    def __init__(self, number: int, released: Path | None = None) -> None:
        super().__init__()
        self._number = number
        self._released = released

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        if self._number in batch.column("number").to_pylist():
            raise ValueError(f"{self._number} is too much")
        super().process_batch(batch, ctx, collector)

    def release(self) -> None:
        if self._released is not None:
            (self._released / f"released-{id(self)}").touch()


def with_fragile(operator: Fragile) -> LogicalGraph:
    p = Pipeline(JOB, parallelism=2)
    read = p.read("read", list_source(READ, ROWS, splits=2))
    counted = read.key_by("user").process("fragile", operator, parallelism=2)
    counted.rebalance(parallelism=2).write("out", BookSink("unused"))
    return p.graph()


def test_what_user_code_raises_comes_back_as_a_value(
    executor_under_test: MakeExecutor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = a_runner(with_fragile(Fragile(42)), executor_under_test, tmp_path)
    reports = runner.run()
    failed = [report for report in reports if report.error is not None]
    assert len(failed) == 1
    part = failed[0].error
    assert part is not None
    error = from_error_part(part)
    assert isinstance(error, UserCodeError)
    assert "42 is too much" in error.message
    assert error.context["operator"] == "fragile"
    assert error.context["subtask"] in {"0", "1"}
    assert error.context["epoch"] == "1"
    notes = "\n".join(error.__notes__)
    assert "42" in notes
    assert "ValueError" in notes
    # Nobody behind the failure did anything, and nobody was told off for it.
    assert all(report.is_skipped for report in reports if report.level == 2)
    assert isinstance(find_agreement(runner.environment.job, reports), Failed)
    assert not [record for record in caplog.records if "releasing" in record.message]


def test_a_driver_stops_with_the_error_of_user_code(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    runner = a_runner(with_fragile(Fragile(1)), executor_under_test, tmp_path)
    with pytest.raises(UserCodeError, match="1 is too much"):
        JobDriver(runner.environment, pacer=ManualPacer(runner.clock)).run()
    assert not [path for path in runner.store.list("") if "/epochs/" in path.path]


def test_a_storage_failure_is_raised(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    # At every such call: an executor may try a task again by itself.
    fault = Fault(FaultMode.FAIL_BEFORE, at=None, operation="create", path="*.parquet")
    store = FaultyStore(executor_under_test.new_store(), fault)
    runner = a_runner(read_and_count(), executor_under_test, tmp_path, store)
    with pytest.raises((StorageError, ExternalError)) as raised:
        runner.run()
    assert is_transient(raised.value), "the driver would not try again"


def read_and_count() -> LogicalGraph:
    return counting().graph("unused")


def test_closing_releases_the_operators(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    runner = a_runner(with_fragile(Fragile(-1, marks)), executor_under_test, tmp_path)
    runner.agreed(runner.run())
    assert not [*marks.iterdir()]
    runner.executor.close()
    if executor_under_test.releases_on_close:
        assert len([*marks.iterdir()]) == 2


def run_epochs(runner: EpochRunner, count: int) -> JobSession:
    """Publish some epochs and leave what they ordered to be compacted."""
    session = JobSession.start(runner.environment)
    for _ in range(count):
        assert isinstance(session.run_epoch(), EpochRan)
    return session


@pytest.mark.parametrize("small_bytes", [4 << 20, -1], ids=["small", "as-a-job"])
def test_compactions_are_handed_over_once(
    executor_under_test: MakeExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_bytes: int,
) -> None:
    if isinstance(executor_under_test, MakeOnSpark):
        limit = "penstock.runtime.spark.executor._SMALL_BYTES"
        monkeypatch.setattr(limit, small_bytes)
    runner = a_runner(read_and_count(), executor_under_test, tmp_path)
    run_epochs(runner, 2)
    done = runner.executor.compacted(wait=True)
    assert {str(result.operator) for result in done} == {"read", "count"}
    for result in done:
        for table in result.tables.values():
            assert b"compacted" in table.data
    assert not runner.executor.compacted(wait=True)


def test_compactions_of_a_lost_session_are_forgotten(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    runner = a_runner(read_and_count(), executor_under_test, tmp_path)
    run_epochs(runner, 2)
    runner.executor.forget_compactions()
    assert not runner.executor.compacted(wait=True)


def test_the_parent_is_read_from_the_store_if_it_is_not_given(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    runner = a_runner(read_and_count(), executor_under_test, tmp_path)
    session = run_epochs(runner, 1)
    plan, _ = session._plan(runner.clock.now_micros(), None)
    other = executor_under_test(runner.store, runner.clock)
    reports = other.run_epoch(
        runner.environment.job, replace(plan, run=99, accepted_run=None), None
    )
    runner.agreed(reports)
