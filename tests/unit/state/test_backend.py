import pytest

from penstock.errors import CorruptStateError, ErrorCode, InternalError, StateError
from penstock.state.checkpoints import BackingStore, ParquetBackend
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.records import ObjectRef
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import a_ref, an_object_ref

REF = a_ref(3, generation=2)


def a_subtask(*, index: int = 0, commit_data: bytes = b"") -> pb.OperatorCheckpointMetadata:
    return pb.OperatorCheckpointMetadata(
        operator_metadata=pb.OperatorMetadata(
            operator_id="sink", subtask_index=index, parallelism=2, epoch=3
        ),
        commit_data={"out": commit_data},
    )


def written(store: MemoryStore) -> ObjectRef:
    return ParquetBackend(store).write_operator_checkpoint_metadata(REF, a_subtask())


def test_metadata_lies_beside_the_files_of_its_checkpoint_and_reads_back() -> None:
    store = MemoryStore()
    backend: BackingStore = ParquetBackend(store)
    refs = [
        backend.write_operator_checkpoint_metadata(REF, a_subtask(index=index))
        for index in range(2)
    ]
    assert [ref.path for ref in refs] == [
        f"job/generations/2/checkpoints/0000000003/operator-sink-{index}.metadata"
        for index in range(2)
    ]
    for index, ref in enumerate(refs):
        assert backend.read_operator_checkpoint_metadata(ref) == a_subtask(index=index)


def test_writing_the_same_metadata_again_is_fine() -> None:
    store = MemoryStore()
    assert written(store) == written(store)


def test_other_metadata_in_the_same_place_is_refused() -> None:
    store = MemoryStore()
    written(store)
    before = store.contents()
    with pytest.raises(InternalError, match="already holds other metadata"):
        ParquetBackend(store).write_operator_checkpoint_metadata(
            REF, a_subtask(commit_data=b"other")
        )
    assert store.contents() == before


@pytest.mark.parametrize(
    ("damage", "code", "what"),
    [
        (None, ErrorCode.OBJECT_MISSING, "is missing"),
        (b"", ErrorCode.CHECKSUM_MISMATCH, "has 0 bytes"),
        ("cut", ErrorCode.CHECKSUM_MISMATCH, "the manifest says"),
        ("flip", ErrorCode.CHECKSUM_MISMATCH, "does not match its checksum"),
    ],
)
def test_what_a_manifest_refers_to_is_verified_on_every_read(
    damage: bytes | str | None, code: ErrorCode, what: str
) -> None:
    store = MemoryStore()
    ref = written(store)
    data = store.read(ref.path)
    assert data is not None
    store.delete(ref.path)
    if damage is not None:
        flipped = bytes([data[0] ^ 1]) + data[1:]
        choices = {"cut": data[:-1], "flip": flipped}
        store.put(ref.path, choices[damage] if isinstance(damage, str) else damage)
    with pytest.raises(CorruptStateError, match=what) as caught:
        ParquetBackend(store).read_operator_checkpoint_metadata(ref)
    assert caught.value.code is code
    assert caught.value.context["path"] == ref.path


def test_an_operator_that_could_leave_the_slot_is_refused() -> None:
    metadata = a_subtask()
    metadata.operator_metadata.operator_id = "../other"
    with pytest.raises(Exception, match="not a valid operator id"):
        ParquetBackend(MemoryStore()).write_operator_checkpoint_metadata(REF, metadata)


def test_metadata_of_a_newer_protocol_asks_for_an_upgrade() -> None:
    store = MemoryStore()
    ref = written(store)
    envelope = pb.Envelope.FromString(store.read(ref.path) or b"")
    envelope.protocol_version = 99
    data = envelope.SerializeToString(deterministic=True)
    store.put(ref.path, data)

    with pytest.raises(StateError, match="upgrade Penstock"):
        ParquetBackend(store).read_operator_checkpoint_metadata(
            an_object_ref(ref.path, data)
        )
