"""Runs of many files: large enough that one epoch or compaction writes a dozen of them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core import settings
from penstock.core.ids import Subtask
from penstock.core.key_hash import hash_keys, owners_of
from penstock.state.files.parquet import ROW_GROUP_ROWS
from penstock.state.tables.compaction import cut_runs
from penstock.state.tables.specs import keyed_table, time_keyed_table
from penstock.state.tables.table_manager import TableManager
from penstock.testing import assert_job_is_whole
from tests.builders.kept_epochs import files_of
from tests.builders.state_job import StateJob

OP = "op"
PARTS = 11
"""More than ten: as text, part 10 comes before part 2."""
COUNT = PARTS * ROW_GROUP_ROWS
COLUMNS: dict[str, Any] = {
    "key": pa.int64(),
    "value": pa.int64(),
    "time": pa.timestamp("us"),
}
SCHEMA = pa.schema(COLUMNS)
SPECS = {
    OP: [
        keyed_table("keyed", SCHEMA, key_columns=["key"]),
        time_keyed_table("timed", SCHEMA, key_columns=["key"], time_column="time"),
        time_keyed_table("loose", SCHEMA, time_column="time"),
    ]
}


def rows_of(keys: Any, value: int, subtask: Subtask) -> pa.RecordBatch:
    owners = owners_of(hash_keys([pa.array(keys)]), subtask.parallelism)
    own = keys[owners == subtask.index]
    arrays: list[Any] = [
        pa.array(own),
        pa.array(np.full(len(own), value)),
        pa.array(np.zeros(len(own), np.int64)).view(pa.timestamp("us")),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Story:
    """What is written, and what should then be seen."""

    def __init__(self, job: StateJob) -> None:
        self.job = job
        self.values = np.full(COUNT, -1, np.int64)
        self.inserted = 0

    def put(self, keys: Any, value: int, *, inserts: bool) -> None:
        def write(_operator: str, subtask: Subtask, manager: TableManager) -> None:
            rows = rows_of(keys, value, subtask)
            manager.get_keyed_state("keyed").put(rows)
            if inserts:
                manager.get_time_keyed_state("timed").insert(rows, None)
                manager.get_time_keyed_state("loose").insert(rows, None)

        self.job.run_epoch(write)
        self.values[keys] = value
        self.inserted += len(keys) if inserts else 0

    def delete(self, keys: Any) -> None:
        def write(_operator: str, subtask: Subtask, manager: TableManager) -> None:
            manager.get_keyed_state("keyed").delete(rows_of(keys, 0, subtask))

        self.job.run_epoch(write)
        self.values[keys] = -1

    def check(self) -> None:
        """Scan and count in all subtasks, then drop the epoch that this began."""
        found = np.full(COUNT, -1, np.int64)
        seen = 0
        timed = loose = 0
        for manager in self.job.open_subtasks().values():
            for batch in manager.get_keyed_state("keyed").scan():
                found[batch.column("key").to_numpy()] = batch.column("value").to_numpy()
                seen += batch.num_rows
            timed += manager.get_time_keyed_state("timed").rows().num_rows
            loose += manager.get_time_keyed_state("loose").rows().num_rows
        assert np.array_equal(found, self.values)
        assert seen == np.count_nonzero(self.values >= 0)
        assert (timed, loose) == (self.inserted, self.inserted)

    def compact(self) -> None:
        for index in range(self.job.parallelism):
            self.job.compact(OP, index, target_bytes=1)
        self.job.run_epoch()


@pytest.mark.slow
@pytest.mark.skipif(
    settings.current().hash_bits < 40,
    reason="keys of equal hash are told apart one round each; here they would be thousands",
)
def test_a_run_of_many_files_is_rescaled_deleted_from_and_compacted_again() -> None:
    story = Story(StateJob(SPECS))
    job = story.job
    everything = np.arange(COUNT)
    story.put(everything[: COUNT // 2], 1, inserts=True)
    story.put(everything, 2, inserts=False)
    story.put(everything[COUNT // 2 :], 3, inserts=True)
    story.compact()
    parts = files_of(job.metadata[OP][0], "keyed")
    assert len(parts) >= PARTS
    assert len(cut_runs(parts)) == 1
    story.check()
    for parallelism in (3, 2):
        job.start(parallelism=parallelism)
        story.check()
        story.delete(everything[::parallelism])
        story.check()
    story.compact()
    story.check()
    job.start(parallelism=1)
    story.check()
    job.checkpoints.collect(job.claim, keep_epochs=1)
    job.checkpoints.sweep(job.claim)
    assert_job_is_whole(job.checkpoints)
    story.check()
