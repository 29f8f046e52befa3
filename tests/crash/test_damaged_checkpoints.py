"""Damaged, missing and foreign objects: a clear error, nothing changed, older epochs restorable."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo, checksum_of
from penstock.errors import CorruptStateError, ErrorCode, PenstockError, StateError
from penstock.state.checkpoints import ParquetBackend
from penstock.state.files.parquet import EncodedFile, ParquetEncoder, as_batch
from penstock.state.files.state_file import StateFile
from penstock.state.proto import state_pb2
from penstock.state.protocol.codec import seal
from penstock.state.protocol.paths import epoch_record_path, manifest_path
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import (
    an_attempt,
    files_of,
    frontier_of,
    load_epoch,
    manifest_of,
    read_metadata,
)
from tests.builders.protocol import JOB
from tests.builders.shop import SHOP, ShopEpoch, ShopModel, check_contents, shop_specs
from tests.builders.state_job import StateJob

TABLES = ["counts", "totals", "panes"]
LAST = 3
Damage = Callable[[bytes], bytes | None]


def a_foreign_file() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": ["a"], "value": [1]}), sink)
    return sink.getvalue().to_pybytes()


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


DAMAGES: dict[str, tuple[Damage, ErrorCode]] = {
    "missing": (lambda _: None, ErrorCode.OBJECT_MISSING),
    "empty": (lambda _: b"", ErrorCode.CHECKSUM_MISMATCH),
    "truncated": (lambda data: data[:-7], ErrorCode.CHECKSUM_MISMATCH),
    "cut in half": (lambda data: data[: len(data) // 2], ErrorCode.CHECKSUM_MISMATCH),
    "a flipped bit": (lambda data: flip(data, 40), ErrorCode.CHECKSUM_MISMATCH),
    "a flipped footer": (lambda data: flip(data, -20), ErrorCode.CHECKSUM_MISMATCH),
    "foreign": (lambda _: a_foreign_file(), ErrorCode.CHECKSUM_MISMATCH),
}


def a_job() -> tuple[StateJob, dict[int, ShopModel]]:
    """A job of three epochs, each of which wrote every table in every subtask."""
    objects, history = three_epochs()
    return StateJob(shop_specs(), store=MemoryStore(objects), parallelism=2), {**history}


@cache
def three_epochs() -> tuple[dict[str, bytes], dict[int, ShopModel]]:
    job = StateJob(shop_specs(), parallelism=2)
    history = {0: ShopModel()}
    for number in range(1, LAST + 1):
        epoch = ShopEpoch(job, history[number - 1], 1)
        rows = [(key, number, number) for key in "abcdefgh"]
        epoch.apply(
            [
                ("put", "totals", rows),
                ("put", "recent", rows),
                ("put", "lines", rows),
                ("insert_panes", rows, None),
                *(("insert_marks", index, rows, None) for index in range(2)),
                *(("count", index, f"{index}", number) for index in range(2)),
                ("commit", 0, f"epoch {number}"),
            ]
        )
        permit = job.publish(job.checkpoint_subtasks())
        history[number] = epoch.finished(None)
        assert permit is not None
        job.commit(permit)
    return contents(job), history


def put_back(job: StateJob, path: str, data: bytes | None) -> None:
    if data is None:
        job.store.delete(path)
    else:
        job.store.put(path, data)


def contents(job: StateJob) -> dict[str, bytes]:
    assert isinstance(job.store, MemoryStore)
    return job.store.contents()


def read_everything(job: StateJob, history: dict[int, ShopModel], epoch: int) -> None:
    """Load an epoch as a restoring job would, at two parallelisms, and read all of it."""
    for parallelism in (2, 3):
        managers = load_epoch(
            job.checkpoints, SHOP, job.specs[SHOP], epoch, parallelism=parallelism
        )
        check_contents(managers, history[epoch], 1)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", TABLES)
def test_a_damaged_state_file_is_named_and_older_epochs_stay_restorable(
    table: str, damage: str
) -> None:
    job, history = a_job()
    change, code = DAMAGES[damage]
    path = files_of(job.metadata[SHOP][1], table)[-1].path
    put_back(job, path, change(contents(job)[path]))
    before = contents(job)
    with pytest.raises(CorruptStateError) as raised:
        read_everything(job, history, LAST)
    assert raised.value.code is code
    assert path in str(raised.value)
    assert "Nothing was changed" in str(raised.value)
    assert "restore the job from an older epoch or a savepoint" in str(raised.value)
    assert contents(job) == before
    read_everything(job, history, LAST - 1)
    job.start(restore=Epochs(Epoch(LAST - 1)))
    epoch = ShopEpoch(job, history[LAST - 1], 1)
    epoch.check()
    epoch.count(0, "after the damage", 1)
    permit = job.publish(job.checkpoint_subtasks())
    assert permit is None
    history[LAST + 1] = epoch.finished(None)
    read_everything(job, history, LAST + 1)


LISTS: dict[str, Any] = {
    "counts": state_pb2.GlobalKeyedTableSubtaskCheckpointMetadata,
    "totals": state_pb2.KeyedTableSubtaskCheckpointMetadata,
    "panes": state_pb2.TimeKeyedTableSubtaskCheckpointMetadata,
}


def with_renamed_column(file: StateFile, data: bytes, column: int) -> EncodedFile:
    """Return a file as if a column had always had another name."""
    rows = pq.ParquetFile(pa.BufferReader(data)).read().replace_schema_metadata(None)
    names = rows.column_names
    names[column] = "renamed"
    rows = rows.rename_columns(names)
    encoder = ParquetEncoder(rows.schema, file.state_version, rows)
    encoder.write(as_batch(rows))
    return encoder.finish()


COLUMNS = {"counts": 2, "totals": 6, "panes": 5}


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table in TABLES for column in range(COLUMNS[table])],
)
def test_a_state_file_with_a_renamed_column_is_named_though_its_checksum_fits(
    table: str, column: int
) -> None:
    job, history = a_job()
    manifest = manifest_of(job.checkpoints, LAST)
    restored = read_metadata(job.store, manifest)[SHOP]
    stored = restored[1].table_checkpoint_metadata[table]
    files = LISTS[table].FromString(stored.data)
    entry = files.files[-1]
    data = contents(job)[entry.path]
    assert len(pq.ParquetFile(pa.BufferReader(data)).schema_arrow) == COLUMNS[table]
    changed = with_renamed_column(StateFile.from_proto(entry), data, column)
    job.store.put(entry.path, changed.data)
    entry.size_bytes, entry.checksum = len(changed.data), changed.checksum
    entry.footer_bytes = changed.footer_bytes
    entry.footer_checksum = changed.footer_checksum
    stored.data = files.SerializeToString()
    before = contents(job)

    def read(parallelism: int) -> None:
        managers = []
        for index in range(parallelism):
            task = TaskInfo(JOB, OperatorId(SHOP), Subtask(index, parallelism))
            environment = an_attempt(job.store, task)
            managers.append(TableManager.load(environment, job.specs[SHOP], restored))
            managers[-1].begin_epoch(frontier_of(manifest))
        check_contents(managers, history[LAST], 1)

    for parallelism in (2, 3):
        with pytest.raises(CorruptStateError) as raised:
            read(parallelism)
        assert entry.path in str(raised.value)
    assert contents(job) == before


@pytest.mark.parametrize("schema", [b"", b"no schema", None])
@pytest.mark.parametrize("table", ["totals", "panes"])
def test_metadata_without_the_columns_of_a_table_is_named(
    table: str, schema: bytes | None
) -> None:
    job, _ = a_job()
    assert job.manifest is not None
    ref = job.manifest.operators[0].subtasks[1]
    metadata = ParquetBackend(job.store).read_operator_checkpoint_metadata(ref)
    stored = metadata.table_configs[table]
    kind: Any = (
        state_pb2.KeyedTableConfig if table == "totals" else state_pb2.TimeKeyedTableConfig
    )
    config = kind.FromString(stored.config)
    if schema is None:
        stored.config = b"no message"
    else:
        config.arrow_schema = schema
        stored.config = config.SerializeToString()
    data = seal(metadata)
    job.store.put(ref.path, data)
    forged = replace(ref, size_bytes=len(data), checksum=checksum_of(data))
    with pytest.raises(
        CorruptStateError, match=f"declares table '{table}' without"
    ) as raised:
        ParquetBackend(job.store).read_operator_checkpoint_metadata(forged)
    assert raised.value.code is ErrorCode.UNDECODABLE
    assert ref.path in str(raised.value)


def a_newer_envelope(data: bytes) -> bytes:
    envelope = state_pb2.Envelope.FromString(data)
    envelope.protocol_version += 1
    return envelope.SerializeToString()


RECORD_DAMAGES: dict[str, tuple[Damage, type[PenstockError], ErrorCode]] = {
    "truncated": (lambda data: data[:-7], CorruptStateError, ErrorCode.UNDECODABLE),
    "foreign": (lambda _: b"\n\x05other", CorruptStateError, ErrorCode.FOREIGN_OBJECT),
    "empty": (lambda _: b"", CorruptStateError, ErrorCode.FOREIGN_OBJECT),
    "newer": (a_newer_envelope, StateError, ErrorCode.NEWER_PROTOCOL),
}


@pytest.mark.parametrize("damage", RECORD_DAMAGES)
@pytest.mark.parametrize("record", ["manifest", "epoch record"])
def test_a_damaged_record_stops_the_job_and_changes_nothing(
    record: str, damage: str
) -> None:
    job, _ = a_job()
    assert job.base is not None
    path = (
        manifest_path(job.base.ref)
        if record == "manifest"
        else epoch_record_path(JOB, LAST)
    )
    change, kind, code = RECORD_DAMAGES[damage]
    put_back(job, path, change(contents(job)[path]))
    before = contents(job)
    with pytest.raises(kind) as raised:
        job.start()
    assert raised.value.code is code
    assert path in str(raised.value)
    added = {name for name, data in contents(job).items() if before.get(name) != data}
    assert all(name.endswith("/claim") for name in added)
    assert set(before) <= set(contents(job))


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_a_damaged_manifest_leaves_older_epochs_restorable(damage: str) -> None:
    job, history = a_job()
    assert job.base is not None
    path = manifest_path(job.base.ref)
    change, _, _ = RECORD_DAMAGES[damage]
    put_back(job, path, change(contents(job)[path]))
    job.start(restore=Epochs(Epoch(LAST - 1)))
    ShopEpoch(job, history[LAST - 1], 1).check()


@pytest.mark.parametrize("damage", ["missing", "truncated", "a flipped bit", "foreign"])
def test_damaged_metadata_is_named_and_older_epochs_stay_restorable(damage: str) -> None:
    job, history = a_job()
    assert job.manifest is not None
    path = job.manifest.operators[0].subtasks[1].path
    change, code = DAMAGES[damage]
    put_back(job, path, change(contents(job)[path]))
    before = contents(job)
    with pytest.raises(CorruptStateError) as raised:
        read_everything(job, history, LAST)
    assert raised.value.code is code
    assert path in str(raised.value)
    assert contents(job) == before
    read_everything(job, history, LAST - 1)


def test_a_commit_that_cannot_be_replayed_does_not_stand_in_the_way_of_a_restore() -> None:
    job, history = a_job()
    epoch = ShopEpoch(job, history[LAST], 1)
    epoch.commit(0, "never committed")
    permit = job.publish(job.checkpoint_subtasks())
    assert permit is not None
    path = permit.manifest.operators[0].subtasks[0].path
    put_back(job, path, None)
    with pytest.raises(CorruptStateError, match="is missing"):
        job.start()
    job.start(restore=Epochs(Epoch(LAST)))
    after = ShopEpoch(job, history[LAST], 1)
    after.check()
    after.commit(0, "committed")
    again = job.publish(job.checkpoint_subtasks())
    assert again is not None
    job.commit(again)
    job.start()
    assert job.base is not None
    assert job.base.ref == again.ref
    assert b"never committed" not in {data for *_, data in job.sink}


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_a_collection_stops_at_metadata_it_cannot_read_and_deletes_nothing(
    damage: str,
) -> None:
    job, _ = a_job()
    assert job.manifest is not None
    path = job.manifest.operators[0].subtasks[1].path
    change, _ = DAMAGES[damage]
    put_back(job, path, change(contents(job)[path]))
    before = contents(job)
    with pytest.raises(CorruptStateError, match=r"nothing was deleted|Nothing was changed"):
        job.checkpoints.collect(job.claim, keep_epochs=1)
    assert set(before) <= set(contents(job))
