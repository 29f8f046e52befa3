"""Tables by their durable kind: any of them opens by protobuf, and nothing of another kind."""

from dataclasses import replace

import pytest

from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.proto import state_pb2
from penstock.state.protocol.codec import files_to_keep
from penstock.state.tables.global_keyed import GlobalKeyedTable
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.operator_tables import (
    TABLE_KINDS,
    merge_table,
    open_table,
    set_list,
    table_kind_of,
)
from penstock.state.tables.specs import global_table
from penstock.state.tables.table import checked_proto_decode, encode_list, files_of
from penstock.state.tables.time_keyed import TimeKeyedTable
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
        files_of(foreign, table="counts", expected=COUNTS.table_type)
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
    metadata = state_pb2.OperatorCheckpointMetadata()
    metadata.table_checkpoint_metadata["counts"].CopyFrom(foreign)
    with pytest.raises(StateError, match="TIME_KEYED_TABLE"):
        files_of(foreign, table="counts", expected=COUNTS.table_type)
    with pytest.raises(StateError, match="TIME_KEYED_TABLE"):
        merge_table(COUNTS, an_environment().task, {0: metadata})


@pytest.mark.parametrize("table_type", [0, 99])
def test_an_unknown_kind_is_refused(table_type: int) -> None:
    with pytest.raises(StateError, match="unknown kind") as raised:
        table_kind_of(table_type, table="counts")  # type: ignore[arg-type]  # an unknown number on the wire
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
    with pytest.raises(StateError, match="version 7") as raised:
        open_table(replace(COUNTS, state_version=7), an_environment())
    assert raised.value.code is ErrorCode.UNSUPPORTED_STATE_VERSION


def test_a_table_opens_without_its_state_class() -> None:
    cluster = TableCluster(COUNTS)
    cluster.run_epoch(lambda _, view: view.insert("a", 1))
    untyped = replace(COUNTS, state_type=None)
    table = open_table(untyped, an_environment(cluster.store), cluster.merged() or ())
    view = table.view()
    assert dict(view.items()) == {"a": 1}  # type: ignore[attr-defined]  # a global view


def test_metadata_round_trips_with_its_subtask_and_files() -> None:
    cluster = TableCluster(COUNTS, 2)
    cluster.run_epoch(lambda index, view: view.insert(f"k{index}", index))
    merged = cluster.merged()
    assert merged is not None
    metadata = state_pb2.OperatorCheckpointMetadata()
    metadata.operator_metadata.subtask_index = 3
    set_list(metadata, "counts", COUNTS.table_type, merged)
    part = metadata.table_checkpoint_metadata["counts"]
    assert (part.subtask_index, part.table_type) == (3, COUNTS.table_type)
    files = files_of(part, table="counts")
    assert files == merged
    assert files_to_keep(part, "path", "counts") == {file.path for file in files}
    assert len(files) == 2


def test_equal_metadata_gives_equal_bytes() -> None:
    cluster = TableCluster(COUNTS)
    cluster.run_epoch(lambda index, view: view.insert(f"k{index}", index))
    assert encode_list(cluster.files()) == encode_list(list(cluster.files()))


@pytest.mark.parametrize("name", sorted(state_pb2.DESCRIPTOR.message_types_by_name))
def test_all_list_messages_are_wire_equal(name: str) -> None:
    """Lists of every kind are read and written as one message."""
    if name.endswith("CheckpointMetadata") and name.startswith(
        ("Global", "TimeKeyed", "Keyed")
    ):
        fields = state_pb2.DESCRIPTOR.message_types_by_name[name].fields
        assert [(f.name, f.number, f.message_type) for f in fields] == [
            ("files", 1, state_pb2.StateFile.DESCRIPTOR)
        ]
