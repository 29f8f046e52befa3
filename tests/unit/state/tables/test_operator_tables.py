"""An operator's tables over all its subtasks: merging lists, compacting, swapping in."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, StateError, UserError
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import ProtocolRules
from penstock.state.tables.operator_tables import (
    apply_compaction,
    merge_table,
    plan_compactions,
    run_compactions,
    tables_by_name,
)
from penstock.state.tables.specs import TableSpec, global_table, keyed_table
from penstock.state.tables.table import CompactionConfig, Frontier
from penstock.state.tables.table import files_of as listed_files
from tests.builders.kept_epochs import Metadata, files_of
from tests.builders.shop import owned
from tests.builders.state_job import StateJob
from tests.unit.state.tables.table_builders import an_environment, compact_subtask

COLUMNS: dict[str, Any] = {"key": pa.string(), "value": pa.int64()}
ROWS = pa.schema(COLUMNS)
COUNTS = global_table("counts", str, int)
TOTALS = keyed_table("totals", ROWS, key_columns=["key"])
SPECS = [COUNTS, TOTALS]
RULES = ProtocolRules(adoption_window=2)
Compacted = dict[str, state_pb2.TableCheckpointMetadata]


def run_epoch(job: StateJob, value: int) -> None:
    """Every subtask writes all its keys and one shared count."""
    columns: dict[str, Any] = {"key": list("abcdefgh"), "value": [value] * 8}
    batch = pa.RecordBatch.from_pydict(columns, schema=ROWS)

    def write(_operator: str, subtask: Any, manager: Any) -> None:
        manager.get_global_keyed_state("counts").insert(f"subtask {subtask.index}", value)
        manager.get_keyed_state("totals").put(owned(batch, subtask))

    job.run_epoch(write)


def a_job(epochs: int = 3, parallelism: int = 2, specs: Any = SPECS) -> StateJob:
    job = StateJob({"op": specs}, parallelism=parallelism)
    for value in range(epochs):
        run_epoch(job, value)
    return job


def compacted(job: StateJob, index: int) -> Compacted:
    environment = job.attempt(("op", index))
    config = CompactionConfig(job.epoch, Frontier(), min_compaction_epochs=2)
    return compact_subtask(job.specs["op"], environment, config, job.metadata["op"])


def applied(
    job: StateJob, done: Compacted, *, epoch: int | None = None
) -> dict[int, Metadata]:
    number = job.epoch if epoch is None else Epoch(epoch)
    return apply_compaction(job.metadata["op"], done, epoch=number, rules=RULES)


def paths(metadata: Metadata, table: str) -> list[str]:
    return [file.path for file in files_of(metadata, table)]


def test_lists_of_all_subtasks_are_merged_and_tables_without_state_left_out() -> None:
    empty = keyed_table("empty", ROWS, key_columns=["key"])
    job = a_job(specs=[*SPECS, empty])
    task = an_environment(parallelism=3).task
    merged = {
        str(spec.name): merge_table(spec, task, job.metadata["op"])
        for spec in job.specs["op"]
    }
    assert sorted(name for name, files in merged.items() if files) == ["counts", "totals"]
    both = [
        path for index in range(2) for path in paths(job.metadata["op"][index], "totals")
    ]
    assert sorted(file.path for file in merged["totals"]) == sorted(both)
    assert [file.epoch for file in merged["totals"]] == [1, 1, 2, 2, 3, 3]


def test_a_compaction_merges_only_what_its_own_subtask_sees() -> None:
    job = a_job()
    done = compacted(job, 1)
    assert sorted(done) == ["totals"], "the global table is merged once, by subtask 0"
    changed = applied(job, done)
    assert sorted(changed) == [1]
    assert len(paths(changed[1], "totals")) == 1
    assert "compacted" in paths(changed[1], "totals")[0]


def test_a_merge_is_planned_once_and_run_as_it_was_planned() -> None:
    job = a_job()
    environment = job.attempt(("op", 0))
    config = CompactionConfig(job.epoch, Frontier(), min_compaction_epochs=2)
    metadata = dict(job.metadata["op"])
    planned = plan_compactions(SPECS, environment.task, config, metadata)
    assert [str(due.spec.name) for due in planned] == ["counts", "totals"]
    inputs = files_of(metadata[0], "totals")
    assert planned[1].plan.inputs == inputs
    assert planned[1].plan.size_bytes == sum(file.size_bytes for file in inputs)
    run_epoch(job, 9)
    done = run_compactions(planned, environment, config)
    (output,) = listed_files(done["totals"], table="totals")
    assert output.replaces == tuple(file.identity for file in inputs)


def test_a_global_table_is_swapped_in_all_subtasks_at_once() -> None:
    job = a_job()
    done = compacted(job, 0)
    assert sorted(done) == ["counts", "totals"]
    changed = applied(job, done)
    assert sorted(changed) == [0, 1]
    assert len(paths(changed[0], "counts")) == 1
    assert paths(changed[1], "counts") == []
    assert paths(changed[1], "totals") == paths(job.metadata["op"][1], "totals")


def test_applying_does_not_touch_what_it_was_given() -> None:
    job = a_job()
    before = {
        i: part.SerializeToString(deterministic=True)
        for i, part in job.metadata["op"].items()
    }
    applied(job, compacted(job, 0))
    after = {
        i: part.SerializeToString(deterministic=True)
        for i, part in job.metadata["op"].items()
    }
    assert after == before


def test_everything_else_in_the_metadata_is_kept() -> None:
    job = a_job()
    job.metadata["op"][1].commit_data["counts"] = b"to commit"
    changed = applied(job, compacted(job, 0))
    assert changed[1].commit_data["counts"] == b"to commit"
    assert changed[1].operator_metadata == job.metadata["op"][1].operator_metadata
    assert dict(changed[0].table_configs) == dict(job.metadata["op"][0].table_configs)


def test_a_swap_is_void_once_its_inputs_were_swapped_out() -> None:
    job = a_job()
    first, second = compacted(job, 1), compacted(job, 1)
    job.metadata["op"].update(applied(job, first))
    assert applied(job, second) == {}


def test_files_written_meanwhile_stay_behind_the_swapped_ones() -> None:
    job = a_job()
    done = compacted(job, 1)
    run_epoch(job, 9)
    changed = applied(job, done)
    found = paths(changed[1], "totals")
    assert len(found) == 2
    assert "compacted" in found[0]
    assert found[1] == paths(job.metadata["op"][1], "totals")[-1]


@pytest.mark.parametrize(("later", "is_adopted"), [(0, True), (2, True), (3, False)])
def test_a_compaction_is_void_when_a_collector_may_have_swept_its_files(
    later: int, is_adopted: bool
) -> None:
    job = a_job()
    done = compacted(job, 1)
    changed = applied(job, done, epoch=job.epoch + later)
    assert bool(changed) is is_adopted


def test_a_compaction_from_the_future_is_void() -> None:
    job = a_job()
    assert applied(job, compacted(job, 1), epoch=job.epoch - 1) == {}


def test_a_table_that_is_no_longer_declared_is_left_alone() -> None:
    job = a_job()
    done = compacted(job, 0)
    for part in job.metadata["op"].values():
        for name in ("counts", "totals"):
            del part.table_configs[name]
            del part.table_checkpoint_metadata[name]
    assert applied(job, done) == {}


def test_compacting_an_operator_without_state_does_nothing() -> None:
    assert compacted(a_job(epochs=1), 0) == {}
    job = a_job(epochs=0)
    job.run_epoch()
    assert compacted(job, 0) == {}


def test_metadata_of_another_kind_is_refused_before_it_is_merged() -> None:
    job = a_job()
    part = job.metadata["op"][1].table_checkpoint_metadata["totals"]
    part.table_type = state_pb2.TIME_KEYED_TABLE
    with pytest.raises(StateError, match=r"'totals'.*TIME_KEYED_TABLE") as raised:
        merge_table(TOTALS, an_environment(parallelism=3).task, job.metadata["op"])
    assert raised.value.code is ErrorCode.TABLE_TYPE_MISMATCH


def test_a_name_is_declared_once() -> None:
    specs: list[TableSpec] = [COUNTS, TOTALS]
    assert list(tables_by_name(specs)) == ["counts", "totals"]
    with pytest.raises(UserError, match="'counts' twice"):
        tables_by_name([*specs, global_table("counts")])
