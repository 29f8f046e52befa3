"""Rows of several epochs become visible together, in one file; until then they are state."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.files.committed import committed_files, read_committed
from penstock.connectors.files.connector import files
from penstock.connectors.files.latest import read_latest
from penstock.connectors.files.output.merging import StagedFile, join_epochs, plan_groups
from penstock.connectors.files.output.waiting import Patience, Wait, own_place, places_of
from penstock.connectors.files.sink import FilesSink, FilesSinkConfig
from penstock.core.clock import new_token
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, StateError, UserError
from penstock.operators.context import CommitContext
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import (
    PAUSE,
    Fault,
    FaultMode,
    FaultyStore,
    LocalJob,
    OperatorHarness,
    ScriptedSource,
)
from tests.builders.files_job import parts_in, paths_in, sink_on
from tests.builders.graphs import schema_of

ROWS = schema_of(n=pa.int64(), day=pa.string())


class Output:
    """A files sink under test, and what its readers see."""

    def __init__(self, *, parallelism: int = 1, **options: Any) -> None:
        self.store = MemoryStore()
        self.spec, registry = sink_on(lambda _url: self.store, **options)
        self.harness = OperatorHarness(
            self.spec, ROWS, parallelism=parallelism, registry=registry
        )

    def write(self, *numbers: int, end: bool = False) -> None:
        """Run an epoch with these rows, and commit it if there is something to commit."""
        if numbers:
            self.harness.push([{"n": n, "day": f"d{n % 2}"} for n in numbers])
        before = set(self.harness.commits)
        if end:
            self.harness.end()
        else:
            self.harness.barrier()
        if set(self.harness.commits) - before:
            self.harness.commit()

    @property
    def numbers(self) -> list[int]:
        """What a reader of the lists sees."""
        return sorted(row["n"] for row in read_committed(self.store).to_pylist())


def test_rows_become_visible_in_one_file_when_there_are_enough_of_them() -> None:
    out = Output(min_bytes=2_000)
    for start in (0, 10, 20):
        out.write(*range(start, start + 3))
    assert out.numbers == []
    assert paths_in(out.store) == []
    while not out.numbers:
        out.write(100)
    shown = out.numbers
    assert {0, 1, 2, 10, 11, 12, 20, 21, 22, 100} <= set(shown)
    assert len(parts_in(out.store)) == 1
    out.write(200)
    assert out.numbers == shown
    out.write(end=True)
    assert out.numbers == sorted([*shown, 200])
    assert len(parts_in(out.store)) == 2
    assert paths_in(out.store, "_staging") == []


def test_rows_become_visible_after_a_delay_even_if_no_row_comes() -> None:
    out = Output(visible_after="5m")
    out.write(1)
    out.harness.advance("4m")
    out.write(2)
    assert out.numbers == []
    out.harness.advance("1m")
    out.write()
    assert out.numbers == [1, 2]
    out.write(3)
    assert out.numbers == [1, 2]
    out.harness.advance("6m")
    out.write()
    assert out.numbers == [1, 2, 3]
    assert len(parts_in(out.store)) == 2


def test_a_sink_asks_for_the_epoch_in_which_the_wait_is_over() -> None:
    out = Output(visible_after="5m")
    out.harness.push([{"n": 1, "day": "d"}])
    first = out.harness.barrier()
    began = out.harness.clock.now_micros()
    assert first.wake_up_micros == began + 300_000_000
    out.harness.advance("1m")
    assert out.harness.barrier().wake_up_micros == first.wake_up_micros
    out.harness.advance("4m")
    assert out.harness.barrier().wake_up_micros is None
    large = Output(min_bytes=1)
    large.harness.push([{"n": 1, "day": "d"}])
    assert large.harness.barrier().wake_up_micros == large.harness.clock.now_micros()
    assert large.harness.barrier().wake_up_micros is None
    assert [*large.harness.commits] == [2]


def test_a_job_without_rows_shows_what_waits_in_time() -> None:
    out = f"memory:waiting-{new_token()}"
    pipeline = pen.Pipeline("paused")
    script = [[{"n": 1}], PAUSE("10m"), [{"n": 2}]]
    rows = pipeline.read("rows", ScriptedSource(script))
    rows.write("out", files(out, visible_after="2m"))
    LocalJob(pipeline).run()
    epochs = [(file.epoch, file.row_count) for file in committed_files(out)]
    assert [count for _, count in epochs] == [1, 1]
    assert epochs[0][0] < epochs[1][0]


def test_the_files_of_several_subtasks_are_merged_into_one_by_partition() -> None:
    for options in ({}, {"partition_by": ["day"]}, {"format": "jsonl"}):
        out = Output(parallelism=3, visible_after="1h", **options)
        for start in (0, 10, 20):
            out.write(*range(start, start + 6))
        out.write(end=True)
        expected = [n for start in (0, 10, 20) for n in range(start, start + 6)]
        assert out.numbers == expected
        assert len(parts_in(out.store)) == (2 if "partition_by" in options else 1)
        assert paths_in(out.store, "_staging") == []
        listed = {file.path for file in committed_files(out.store)}
        assert listed == set(parts_in(out.store))


def test_files_are_not_merged_beyond_their_target() -> None:
    out = Output(parallelism=3, visible_after="1h", target_bytes=1)
    out.write(*range(9))
    out.write(end=True)
    assert out.numbers == [*range(9)]
    assert len(parts_in(out.store)) >= 3


def test_a_stop_shows_what_waits_and_a_job_that_goes_on_waits_again() -> None:
    for tells in (True, False):
        out = Output(visible_after="1h")
        out.write(1)
        out.harness.push([{"n": 2, "day": "d"}])
        out.harness.stop(tells_operators=tells)
        out.harness.commit()
        assert out.numbers == [1, 2]
        out.write(3)
        assert out.numbers == [1, 2]
        out.write(end=True)
        assert out.numbers == [1, 2, 3]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_rows_that_wait_are_found_at_another_parallelism(parallelism: int) -> None:
    out = Output(parallelism=3, visible_after="1h")
    for start in (0, 10):
        out.write(*range(start, start + 6))
    checkpoint = out.harness.checkpoint()
    with OperatorHarness.restore(checkpoint, parallelism=parallelism) as restored:
        restored.push([{"n": 100, "day": "d"}])
        restored.barrier()
        assert restored.commits == {}
        restored.end()
        restored.commit()
    assert out.numbers == [*range(6), *range(10, 16), 100]
    assert len(parts_in(out.store)) == 1


def test_rows_that_wait_are_shown_when_the_option_is_left_out() -> None:
    out = Output(visible_after="1h")
    out.write(1, 2)
    plain, _ = sink_on(lambda _url: out.store)
    checkpoint = out.harness.checkpoint()
    with OperatorHarness.restore(checkpoint, operator=plain) as restored:
        restored.barrier()
        restored.commit()
    assert out.numbers == [1, 2]


def test_rows_that_wait_get_columns_that_were_added_and_no_other_change() -> None:
    wider = schema_of(n=pa.int64(), day=pa.string(), more=pa.string())
    out = Output(visible_after="1h")
    out.write(1)
    with restored_with(out, wider) as restored:
        restored.end()
        restored.commit()
    rows = read_committed(out.store).to_pylist()
    assert rows == [{"n": 1, "day": "d1", "more": None}]
    for other in (schema_of(n=pa.string(), day=pa.string()), schema_of(n=pa.int64())):
        out = Output(visible_after="1h")
        out.write(1)
        with (
            restored_with(out, other) as restored,
            pytest.raises(StateError, match="a stop writes the rows") as raised,
        ):
            restored.end()
        assert raised.value.code is ErrorCode.SCHEMA_MISMATCH
        assert paths_in(out.store) == []


def restored_with(out: Output, schema: pa.Schema) -> OperatorHarness:
    """Return another process that goes on with rows of another schema."""
    checkpoint = out.harness.checkpoint()
    stream = StreamSchema(schema)
    nodes = tuple(replace(node, inputs=(stream,)) for node in checkpoint.graph.nodes)
    graph = replace(checkpoint.graph, nodes=nodes)
    return OperatorHarness.restore(replace(checkpoint, graph=graph))


def test_a_table_of_changes_is_read_by_the_epochs_of_its_rows() -> None:
    store = MemoryStore()
    spec, registry = sink_on(lambda _url: store, visible_after="1h")
    changes = schema_of(user=pa.string(), total=pa.int64(), deleted=pa.bool_())
    with OperatorHarness(spec, changes, registry=registry, parallelism=2) as harness:
        for total in (1, 2, 3):
            harness.push(
                [
                    {"user": user, "total": total, "deleted": user == "bob" and total == 3}
                    for user in ("ada", "bob", "cem")
                ]
            )
            harness.barrier()
        harness.end()
        harness.commit()
    assert len(parts_in(store)) == 1
    found = read_latest(store, key="user").sort_by("user").to_pylist()
    assert found == [{"user": "ada", "total": 3}, {"user": "cem", "total": 3}]


def test_lists_without_earlier_rows_are_of_the_version_that_others_read() -> None:
    out = Output(visible_after="1h")
    out.write(1, end=True)
    plain = out.store.read("_committed/0000000001-operator.json")
    assert plain is not None
    assert b'"version": 2' in plain
    assert b"epochs" not in plain
    out = Output(visible_after="1h")
    out.write(1)
    out.write(2, end=True)
    listed = out.store.read("_committed/0000000002-operator.json")
    assert listed is not None
    assert b'"version": 3' in listed


def test_patience_ends_by_size_or_age_whichever_comes_first() -> None:
    waits = [Wait(100, 10), Wait(50, 5)]
    assert not Patience(16, 1_000).is_over(waits, 149)
    assert Patience(15, 1_000).is_over(waits, 149)
    assert Patience(16, 100).is_over(waits, 150)
    assert not Patience(16, None).is_over(waits, 1 << 60)
    assert not Patience(1, 1).is_over([], 1 << 60)
    assert Patience(16, 100).ends_at(waits, 15, 120) == 150
    assert Patience(16, 100).ends_at(waits, 16, 120) == 120
    assert Patience(16, None).ends_at(waits, 15, 120) is None
    assert Patience(1, 1).ends_at([], 99, 120) is None


def test_every_subtask_owns_a_place_and_every_place_has_one_owner() -> None:
    for parallelism in (1, 2, 7, 32):
        tasks = [
            TaskInfo(JobId("j"), OperatorId("o"), Subtask(index, parallelism))
            for index in range(parallelism)
        ]
        places = [own_place(task) for task in tasks]
        assert len(set(places)) == parallelism
        owned = [place for task in tasks for place in places_of(task, range(50))]
        assert sorted(owned) == [*range(50)]


def test_groups_are_of_one_partition_and_of_one_files_size() -> None:
    def file(name: str, size: int, partition: tuple[str | None, ...] = ()) -> StagedFile:
        return StagedFile(name, name, 1, size, "", partition)

    a, b, c = file("a", 4), file("b", 5), file("c", 2)
    assert plan_groups([a, b, c], 0) == [(a,), (b,), (c,)]
    assert plan_groups([a, b, c], 9) == [(a, b), (c,)]
    assert plan_groups([a, b, c], 100) == [(a, b, c)]
    x, y, z = file("x", 1, ("x",)), file("y", 1, ("y",)), file("z", 1, ("x",))
    assert plan_groups([x, y, z], 100) == [(x, z), (y,)]


def test_epochs_that_follow_each_other_are_counted_together() -> None:
    assert join_epochs([(1, 2), (1, 3), (2, 1), (1, 4)], 2) == ((1, 5), (2, 1), (1, 4))
    assert not join_epochs([(2, 2), (2, 3)], 2)


def test_options_that_cannot_work_are_refused() -> None:
    for options, said in (
        ({"min_bytes": 0}, "min_bytes is 0"),
        ({"visible_after": timedelta(0)}, "visible_after is 0"),
    ):
        with pytest.raises(UserError, match=said):
            files("memory:x", **options).sink_spec()
    for size in ("5MB", 5.5, True):
        with pytest.raises(UserError, match="no whole number of bytes"):
            files("memory:x", min_bytes=size)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="visible_after"):
        files("memory:x", visible_after="soon")


@pytest.mark.parametrize(
    ("options", "kind", "value"),
    [
        ({"partition_by": ["x"]}, pa.string(), "x" * 300),
        ({"format": "jsonl"}, pa.timestamp("s"), 253_402_300_800),
        ({}, pa.timestamp("s"), 2**62),
    ],
    ids=["long-folder", "year-10000", "beyond-parquet"],
)
def test_a_row_that_no_file_can_hold_fails_its_own_epoch_and_does_not_wait(
    options: dict[str, Any], kind: pa.DataType, value: object
) -> None:
    store = MemoryStore()
    spec, registry = sink_on(lambda _url: store, visible_after="1h", **options)
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    with OperatorHarness(spec, schema, registry=registry) as harness:
        harness.push(pa.record_batch([[1], pa.array([None], kind)], schema=schema))
        harness.barrier()
        harness.push(pa.record_batch([[2], pa.array([value], kind)], schema=schema))
        with pytest.raises(UserError):
            harness.barrier()
        harness.end()
        harness.commit()
    assert [row["n"] for row in read_committed(store).to_pylist()] == [1]


def test_rows_of_columns_that_do_not_fit_those_that_wait_fail_their_first_epoch() -> None:
    other = schema_of(n=pa.string(), day=pa.string())
    out = Output(visible_after="1h")
    out.write(1)
    with restored_with(out, other) as restored:
        restored.push([{"n": "two", "day": "d"}])
        with pytest.raises(StateError, match="a stop writes the rows"):
            restored.barrier()


def test_a_commit_that_another_driver_overtakes_at_any_call_goes_on() -> None:
    """Whoever commits the same epoch meanwhile lists its files, and tidies up behind them."""
    for at in range(1, 100):
        out = Output(parallelism=3, visible_after="1h")
        out.harness.push([{"n": n, "day": "d"} for n in range(6)])
        out.harness.end()
        overtakes = Fault(FaultMode.DELAY, at, hook=lambda _: commit_by(out, out.store))  # noqa: B023 (called at once)
        slow = FaultyStore(out.store, overtakes)
        commit_by(out, slow)
        assert out.numbers == [*range(6)]
        assert len(parts_in(out.store)) == 1
        if len(slow.calls) < at:
            break
    assert at > 10


def commit_by(out: Output, store: ObjectStore) -> None:
    """Commit the last epoch as another driver does, which reaches the output by this store."""
    ((epoch, data),) = out.harness.commits.items()
    graph = out.harness.checkpoint().graph
    task = TaskInfo(graph.job, graph.nodes[-1].operator, Subtask(0, 3))
    ctx = CommitContext(task, MemoryStore())
    sink = FilesSink(FilesSinkConfig("memory:unused"), lambda _url: store)
    for part in sink.plan_commit(Epoch(epoch), data, ctx):
        sink.handle_commit_part(Epoch(epoch), part.data, CommitContext(task, MemoryStore()))
    sink.handle_commit(Epoch(epoch), data, ctx)
