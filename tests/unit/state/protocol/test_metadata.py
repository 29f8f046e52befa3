from typing import TypeAlias

import pytest

from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.codec import (
    files_behind,
    files_in_metadata,
    seal,
    unseal,
)
from tests.builders.protocol import an_object_ref, metadata_of

PATH = "job/op.metadata"
FileList: TypeAlias = (
    pb.GlobalKeyedTableSubtaskCheckpointMetadata
    | pb.TimeKeyedTableSubtaskCheckpointMetadata
    | pb.KeyedTableSubtaskCheckpointMetadata
)


def metadata_with(**tables: pb.TableSubtaskCheckpointMetadata) -> bytes:
    return seal(pb.OperatorCheckpointMetadata(table_checkpoint_metadata=tables))


def listed(message: FileList, *paths: str) -> bytes:
    for path in paths:
        message.files.add(path=path)
    return message.SerializeToString()


def test_metadata_comes_back_as_it_was_written() -> None:
    metadata = pb.OperatorCheckpointMetadata(
        operator_metadata=pb.OperatorMetadata(operator_id="op", epoch=3),
        commit_data={"out": b"staged files"},
        bytes_written=7,
    )
    assert unseal(pb.OperatorCheckpointMetadata, seal(metadata), PATH) == metadata


def test_files_of_every_kind_of_table_are_found() -> None:
    kinds: dict[pb.TableEnum, FileList] = {
        pb.GLOBAL_KEYED_TABLE: pb.GlobalKeyedTableSubtaskCheckpointMetadata(),
        pb.TIME_KEYED_TABLE: pb.TimeKeyedTableSubtaskCheckpointMetadata(),
        pb.KEYED_TABLE: pb.KeyedTableSubtaskCheckpointMetadata(),
    }
    tables = {
        f"t{kind}": pb.TableSubtaskCheckpointMetadata(
            table_type=kind, data=listed(message, f"a{kind}", f"b{kind}")
        )
        for kind, message in kinds.items()
    }
    assert files_in_metadata(metadata_with(**tables), PATH) == {
        *("a1", "b1", "a2", "b2", "a3", "b3"),
    }


def test_a_table_of_unknown_type_is_an_error_not_a_table_without_files() -> None:
    data = metadata_with(new=pb.TableSubtaskCheckpointMetadata(data=b""))
    with pytest.raises(CorruptStateError, match="table 'new' of unknown type") as caught:
        files_in_metadata(data, PATH)
    assert caught.value.code is ErrorCode.TABLE_TYPE_MISMATCH


def test_unreadable_table_metadata_is_an_error_not_a_table_without_files() -> None:
    broken = pb.TableSubtaskCheckpointMetadata(
        table_type=pb.KEYED_TABLE, data=b"\x0a\x05ab"
    )
    with pytest.raises(CorruptStateError, match="unreadable metadata of table 'counts'"):
        files_in_metadata(metadata_with(counts=broken), PATH)


def test_metadata_is_believed_only_if_it_is_what_the_manifest_refers_to() -> None:
    meant, other = metadata_of([("a", b"")]), metadata_of([("b", b"")])
    assert files_behind(an_object_ref(PATH, meant), meant) == {"a"}
    with pytest.raises(CorruptStateError, match="not the object its manifest") as caught:
        files_behind(an_object_ref(PATH, meant), other)
    assert caught.value.code is ErrorCode.CHECKSUM_MISMATCH
