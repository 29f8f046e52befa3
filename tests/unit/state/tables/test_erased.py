"""The erased adapter: any kind by protobuf, and nothing of another kind."""

import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.proto import state_pb2
from penstock.state.tables.erased import (
    TABLE_KINDS,
    ErasedKind,
    ErasedTable,
    checked_proto_decode,
)
from penstock.state.tables.global_keyed import GlobalKeyedTable
from penstock.state.tables.global_keyed_view import KeyValueTypes
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.specs import global_table, keyed_table
from penstock.state.tables.time_keyed import TimeKeyedTable
from tests.unit.state.files.file_builders import a_schema
from tests.unit.state.tables.table_builders import an_environment
from tests.unit.state.tables.table_cluster import TableCluster

COUNTS = global_table("counts", str, int)


def test_every_durable_type_has_its_kind() -> None:
    assert dict(TABLE_KINDS) == {
        state_pb2.GLOBAL_KEYED_TABLE: GlobalKeyedTable,
        state_pb2.TIME_KEYED_TABLE: TimeKeyedTable,
        state_pb2.KEYED_TABLE: KeyedTable,
    }
    known = set(state_pb2.TableEnum.values()) - {state_pb2.MISSING_TABLE_TYPE}
    assert set(TABLE_KINDS) == known


def test_metadata_of_another_kind_is_refused_and_both_are_named() -> None:
    foreign = state_pb2.TableCheckpointMetadata(table_type=state_pb2.KEYED_TABLE)
    with pytest.raises(StateError) as raised:
        ErasedTable.from_config("counts", COUNTS.to_config(), an_environment(), foreign)
    error = raised.value
    assert error.code is ErrorCode.TABLE_TYPE_MISMATCH
    assert error.context == {
        "table": "counts",
        "expected": "GLOBAL_KEYED_TABLE",
        "found": "KEYED_TABLE",
    }
    assert all(word in error.message for word in ("counts", "KEYED_TABLE"))


def test_subtask_metadata_of_another_kind_is_refused() -> None:
    foreign = state_pb2.TableSubtaskCheckpointMetadata(
        table_type=state_pb2.TIME_KEYED_TABLE
    )
    table = ErasedTable.from_config("counts", COUNTS.to_config(), an_environment())
    with pytest.raises(StateError, match="TIME_KEYED_TABLE"):
        table.epoch_checkpointer(Epoch(1), foreign)
    with pytest.raises(StateError, match="TIME_KEYED_TABLE"):
        table.kind.merge_checkpoint_metadata({0: foreign})


@pytest.mark.parametrize("table_type", [0, 99])
def test_an_unknown_kind_is_refused(table_type: int) -> None:
    config = state_pb2.TableConfig(table_type=table_type)  # type: ignore[arg-type]  # an unknown number on the wire
    with pytest.raises(StateError, match="unknown kind") as raised:
        ErasedKind("counts", config)
    assert raised.value.code is ErrorCode.TABLE_TYPE_MISMATCH


def test_bytes_that_are_no_message_are_corrupt() -> None:
    with pytest.raises(CorruptStateError, match="GlobalKeyedTableConfig of table 'counts'"):
        checked_proto_decode(
            state_pb2.GlobalKeyedTableConfig,
            b"\xff\xff\xff",
            expected=state_pb2.GLOBAL_KEYED_TABLE,
            found=state_pb2.GLOBAL_KEYED_TABLE,
            table="counts",
        )


def test_a_config_and_a_state_class_of_other_versions_are_refused() -> None:
    config = COUNTS.to_config()
    config.state_version = 7
    with pytest.raises(StateError, match="version 7") as raised:
        ErasedTable.from_config(
            "counts", config, an_environment(), state_type=KeyValueTypes(str, int)
        )
    assert raised.value.code is ErrorCode.UNSUPPORTED_STATE_VERSION


def test_a_table_opens_without_its_state_class() -> None:
    cluster = TableCluster(COUNTS)
    cluster.run_epoch(lambda _, view: view.insert("a", 1))
    table = ErasedTable.from_config(
        "counts", COUNTS.to_config(), an_environment(cluster.store), cluster.merged()
    )
    view = table.view()
    assert dict(view.items()) == {"a": 1}  # type: ignore[attr-defined]  # a global view


def test_metadata_round_trips_with_its_subtask_and_files() -> None:
    cluster = TableCluster(COUNTS, 2)
    cluster.run_epoch(lambda index, view: view.insert(f"k{index}", index))
    assert [cluster.parts[index].subtask_index for index in (0, 1)] == [0, 1]
    merged = cluster.merged()
    assert merged is not None
    files = cluster.kind.files_in(merged)
    assert cluster.kind.files_to_keep(merged) == {file.path for file in files}
    assert len(files) == 2


def test_equal_metadata_gives_equal_bytes() -> None:
    spec = keyed_table("t", a_schema(k=pa.int64()), key_columns=["k"])
    kind = ErasedKind("t", spec.to_config())
    message = kind.open_subtask(
        state_pb2.TableSubtaskCheckpointMetadata(table_type=state_pb2.KEYED_TABLE)
    )
    assert kind.seal_subtask(message, 3) == kind.seal_subtask(message, 3)
