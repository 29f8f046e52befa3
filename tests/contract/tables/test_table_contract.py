"""What every kind of table owes: restore, carry forward, rescale, compact, refuse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.ids import Epoch
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    InternalError,
    PenstockError,
    StateError,
    StorageError,
)
from penstock.state.files.state_file import StateFile
from penstock.state.proto import state_pb2
from penstock.state.protocol.codec import files_to_keep
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.table import CommitData, encode_list, files_of
from tests.contract.tables.table_kinds import KINDS, Items, TableKind, owned_by
from tests.unit.state.files.stores import LostAnswerStore
from tests.unit.state.tables.table_builders import a_barrier
from tests.unit.state.tables.table_cluster import TableCluster


class ReadOnlyStore(MemoryStore):
    """Refuses every write once it is told to."""

    __slots__ = ("is_read_only",)

    def __init__(self) -> None:
        super().__init__()
        self.is_read_only = False

    def create(self, path: str, data: bytes) -> bool:
        if self.is_read_only:
            raise StorageError("read-only", code=ErrorCode.STORAGE_READ_ONLY, path=path)
        return super().create(path, data)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> TableKind:
    found = request.param
    assert isinstance(found, TableKind)
    return found


def writing(
    kind: TableKind, cluster: TableCluster, items: Items
) -> Callable[[int, Any], None]:
    """Let each subtask write the keys it owns."""

    def write(index: int, view: Any) -> None:
        own = owned_by(index, cluster.parallelism, items)
        if own:
            kind.write(view, own)

    return write


def run(
    kind: TableKind, cluster: TableCluster, items: Items, *, warm: bool = False
) -> None:
    cluster.run_epoch(writing(kind, cluster, items), warm=warm)


def seen(kind: TableKind, cluster: TableCluster, *, warm: bool = False) -> Items:
    """What all subtasks see together; each key is seen by one subtask, or by all alike."""
    found: Items = {}
    for index in range(cluster.parallelism):
        part = kind.read(cluster.view(index, warm=warm))
        if kind.name != "global":
            assert not part.keys() & found.keys()
        found |= part
    return found


def some(first: int, count: int = 10) -> Items:
    return {f"k{n}": n for n in range(first, first + count)}


def test_an_empty_table_has_no_metadata_and_reads_as_empty(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    cluster.run_epoch()
    assert cluster.parts == {}
    assert cluster.merged() is None
    assert seen(kind, cluster) == {}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("warm", [False, True])
def test_what_was_written_is_restored(
    kind: TableKind, parallelism: int, warm: bool
) -> None:
    cluster = TableCluster(kind.spec, parallelism)
    for epoch in range(3):
        run(kind, cluster, some(100 * epoch), warm=warm)
    assert seen(kind, cluster, warm=warm) == some(0) | some(100) | some(200)


def test_an_epoch_adds_its_delta_behind_the_files_it_carries(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    run(kind, cluster, some(0))
    first = cluster.files()
    run(kind, cluster, some(100))
    assert cluster.files()[: len(first)] == first
    assert [file.epoch for file in cluster.files()] == [1, 2]
    assert [file.level for file in cluster.files()] == [0, 0]


def test_nothing_is_written_for_an_unchanged_table(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    run(kind, cluster, some(0))
    files, objects = cluster.files(), len(list(cluster.store.list("job")))
    cluster.run_epoch()
    assert (cluster.files(), cluster.bytes_written) == (files, 0)
    assert len(list(cluster.store.list("job"))) == objects


def test_the_size_reported_is_the_bytes_written(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    run(kind, cluster, some(0))
    assert cluster.bytes_written == sum(
        info.size_bytes for info in cluster.store.list("job")
    )


def test_two_attempts_at_an_epoch_write_different_objects(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    run(kind, cluster, some(0))
    first = {file.path for file in cluster.files()}
    cluster.parts, cluster.epoch = {}, 0
    run(kind, cluster, some(0))
    assert not first & {file.path for file in cluster.files()}
    assert seen(kind, cluster) == some(0)


def test_files_to_keep_are_all_files_of_the_list(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec, 2)
    run(kind, cluster, some(0))
    run(kind, cluster, some(100))
    merged = cluster.merged()
    assert merged is not None
    listed = {file.path for files in cluster.lists().values() for file in files}
    metadata = state_pb2.TableCheckpointMetadata(
        table_type=kind.spec.table_type, data=encode_list(merged)
    )
    assert files_to_keep(metadata, "path", "table") == listed


@pytest.mark.parametrize("steps", [(1,), (3,), (1, 5), (4, 2, 3)])
def test_a_rescale_loses_and_doubles_nothing(
    kind: TableKind, steps: tuple[int, ...]
) -> None:
    cluster = TableCluster(kind.spec, 2)
    expected = some(0, 30)
    run(kind, cluster, expected)
    for number, parallelism in enumerate(steps, start=1):
        cluster.rescale(parallelism)
        assert seen(kind, cluster) == expected
        run(kind, cluster, some(100 * number))
        expected |= some(100 * number)
        assert seen(kind, cluster) == expected


@pytest.mark.parametrize("parallelism", [1, 3])
def test_compaction_changes_files_but_not_what_they_say(
    kind: TableKind, parallelism: int
) -> None:
    cluster = TableCluster(kind.spec, parallelism)
    expected: Items = {}
    for epoch in range(4):
        run(kind, cluster, some(100 * epoch, 30))
        expected |= some(100 * epoch, 30)
    before = sum(len(files) for files in cluster.lists().values())
    assert cluster.compact_all() >= 1
    assert sum(len(files) for files in cluster.lists().values()) < before
    assert seen(kind, cluster) == expected
    cluster.rescale(2)
    assert seen(kind, cluster) == expected


def test_a_compaction_run_twice_writes_other_objects_of_equal_content(
    kind: TableKind,
) -> None:
    cluster = TableCluster(kind.spec)
    for epoch in range(4):
        run(kind, cluster, some(100 * epoch))
    outputs = [cluster.compact(), cluster.compact()]
    first, second = (
        [_content(file) for file in output] for output in outputs if output is not None
    )
    assert first == second
    paths = {file.path for out in outputs if out for file in out}
    assert len(paths) == 2


def _content(file: StateFile) -> StateFile:
    return replace(file, path="")


def test_a_swap_keeps_what_was_written_since(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    for epoch in range(4):
        run(kind, cluster, some(100 * epoch))
    compacted = cluster.compact()
    assert compacted is not None
    run(kind, cluster, some(900))
    assert cluster.swap(compacted)
    assert [file.level for file in cluster.files()] == [1, 0]
    expected = some(0) | some(100) | some(200) | some(300) | some(900)
    assert seen(kind, cluster) == expected


def test_a_swap_whose_inputs_are_gone_changes_nothing(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    for epoch in range(4):
        run(kind, cluster, some(100 * epoch))
    first, second = cluster.compact(), cluster.compact()
    assert first is not None
    assert second is not None
    assert cluster.swap(first)
    assert not cluster.swap(second)
    assert seen(kind, cluster) == some(0) | some(100) | some(200) | some(300)


def test_an_older_epoch_stays_restorable_after_compaction(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    for epoch in range(3):
        run(kind, cluster, some(100 * epoch))
    older = dict(cluster.parts)
    run(kind, cluster, some(300))
    cluster.compact_all()
    cluster.parts = older
    assert seen(kind, cluster) == some(0) | some(100) | some(200)


def damaged(kind: TableKind, cluster: TableCluster) -> PenstockError:
    with pytest.raises(CorruptStateError) as raised:
        seen(kind, cluster)
    return raised.value


def test_a_missing_file_is_an_error_and_older_epochs_stay(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    run(kind, cluster, some(0))
    older = dict(cluster.parts)
    run(kind, cluster, some(100))
    cluster.store.delete(cluster.files()[-1].path)
    error = damaged(kind, cluster)
    assert error.code is ErrorCode.OBJECT_MISSING
    assert error.context["path"] == cluster.files()[-1].path
    cluster.parts = older
    assert seen(kind, cluster) == some(0)


def test_a_damaged_file_is_an_error(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    run(kind, cluster, some(0))
    path = cluster.files()[0].path
    data = bytearray(cluster.store.read(path) or b"")
    data[len(data) // 3] ^= 4
    cluster.store.put(path, bytes(data))
    assert damaged(kind, cluster).code is ErrorCode.CHECKSUM_MISMATCH


def test_a_store_that_refuses_writes_fails_the_epoch_and_nothing_else(
    kind: TableKind,
) -> None:
    store = ReadOnlyStore()
    cluster = TableCluster(kind.spec, store=store)
    run(kind, cluster, some(0))
    parts = dict(cluster.parts)
    store.is_read_only = True
    with pytest.raises(StorageError):
        run(kind, cluster, some(100))
    assert cluster.parts == parts
    assert seen(kind, cluster) == some(0)


def test_a_lost_answer_of_a_write_is_no_failure(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec, store=LostAnswerStore([True, False]))
    run(kind, cluster, some(0))
    run(kind, cluster, some(100))
    assert seen(kind, cluster) == some(0) | some(100)


def test_metadata_of_another_kind_is_refused(kind: TableKind) -> None:
    others = set(state_pb2.TableEnum.values()) - {kind.spec.table_type}
    for table_type in others:
        foreign = state_pb2.TableCheckpointMetadata(table_type=table_type)  # type: ignore[arg-type]  # plain numbers
        with pytest.raises(StateError) as raised:
            files_of(foreign, table="table", expected=kind.spec.table_type)
        assert raised.value.code is ErrorCode.TABLE_TYPE_MISMATCH


def test_commit_data_is_refused_by_a_table_that_is_not_two_phase(kind: TableKind) -> None:
    checkpointer = TableCluster(kind.spec).table(0).epoch_checkpointer(Epoch(1), ())
    with pytest.raises(StateError) as raised:
        checkpointer.insert_data(CommitData(b"x"))
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


def test_finishing_without_changes_or_state_is_nothing_to_restore(kind: TableKind) -> None:
    checkpointer = TableCluster(kind.spec).table(0).epoch_checkpointer(Epoch(1), ())
    assert checkpointer.finish(a_barrier(1)) is None


def test_catching_up_with_pending_writes_is_a_bug(kind: TableKind) -> None:
    cluster = TableCluster(kind.spec)
    view = cluster.view()
    kind.write(view, some(0))
    with pytest.raises(InternalError):
        view.catch_up((), ())
