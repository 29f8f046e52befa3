"""The global table's checkpointer: which changes it takes, and whose files it reads."""

import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.files.writer import FileDescription, write_state_file
from penstock.state.tables.global_keyed import GlobalKeyedTable
from penstock.state.tables.specs import global_table
from penstock.state.tables.table import BlindDataTuple, CommitData, DataOperation, DataTuple
from tests.unit.state.tables.table_builders import a_barrier
from tests.unit.state.tables.table_cluster import TableCluster

COUNTS = global_table("counts", str, int)


def test_a_checkpointer_takes_decoded_and_encoded_changes() -> None:
    cluster = TableCluster(COUNTS)
    checkpointer = cluster.table(0).epoch_checkpointer(Epoch(1), ())
    checkpointer.insert_data(DataTuple(None, "a", 1))
    checkpointer.insert_data(DataTuple(None, "b", 1))
    checkpointer.insert_data(DataTuple(None, "b", None, DataOperation.TOMBSTONE))
    checkpointer.insert_data(BlindDataTuple(None, b"\xa1c", b"\x05"))
    finished = checkpointer.finish(a_barrier(1))
    assert finished is not None
    cluster.parts = {0: finished[0]}
    assert dict(cluster.view().items()) == {"a": 1, "c": 5}


def test_a_checkpointer_refuses_rows() -> None:
    checkpointer = TableCluster(COUNTS).table(0).epoch_checkpointer(Epoch(1), ())
    with pytest.raises(
        StateError, match="stores keys and values, not RecordBatch"
    ) as raised:
        checkpointer.insert_data(pa.RecordBatch.from_pydict({"x": [1]}))
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


def test_commit_data_is_taken_once_per_epoch_by_a_two_phase_table() -> None:
    spec = global_table("sink", str, int, uses_two_phase_commit=True)
    checkpointer = TableCluster(spec).table(0).epoch_checkpointer(Epoch(3), ())
    before = checkpointer.commit_data
    checkpointer.insert_data(CommitData(b"files"))
    assert (before, checkpointer.commit_data) == (None, b"files")
    with pytest.raises(
        StateError, match="already has commit data for this epoch"
    ) as raised:
        checkpointer.insert_data(CommitData(b"more"))
    assert raised.value.code is ErrorCode.COMMIT_DATA_ALREADY_SET


def test_commit_data_for_another_table_is_refused() -> None:
    checkpointer = TableCluster(COUNTS).table(0).epoch_checkpointer(Epoch(1), ())
    with pytest.raises(StateError, match="uses_two_phase_commit"):
        checkpointer.insert_data(CommitData(b""))


def test_files_of_another_kind_are_not_taken_for_values() -> None:
    cluster = TableCluster(COUNTS)
    cluster.run_epoch(lambda _, view: view.insert("a", 1))
    file = cluster.files()[0]
    rows = pa.table({"other": [1]})
    written = write_state_file(
        cluster.store, f"{file.path}-other", rows, FileDescription(Epoch(1), 0, 0)
    )
    table = cluster.table(0)
    assert isinstance(table, GlobalKeyedTable)
    with pytest.raises(
        CorruptStateError, match="does not hold the state of a global table"
    ):
        table.fold([written])
