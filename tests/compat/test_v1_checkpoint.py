"""A committed checkpoint of format 1 opens for ever: as it is, migrated, rescaled, compacted."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.core.ids import FULL_RANGE
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.records import RULES, Committing, Ready
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.urls import open_store
from penstock.state.tables.fit import TableFate, plan_table_restore
from penstock.state.tables.table_manager import TableManager
from penstock.testing import assert_job_is_whole
from tests.builders.arrow_types import spelled
from tests.builders.kept_epochs import files_of, load_epoch, read_metadata
from tests.builders.protocol import JOB
from tests.builders.state_job import StateJob
from tests.compat import v1_contents as expected
from tests.compat.v1_contents import HIGH, LOW, NULLS, PLAIN, Key, typed_rows
from tests.compat.v1_program import OPERATOR, specs
from tests.compat.write_v1_checkpoint import (
    FOLDER,
    SAVEPOINT,
    keys_of,
    named_rows,
    own,
    write_checkpoint,
)

NEWEST = 5
SAVED = 2
NAME_COLUMNS = {1: "old_name", 2: "new_name", 3: "length"}
# State is written with whole hashes: with cut ones nobody could find it again.
pytestmark = pytest.mark.usefixtures("whole_hashes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy: starting a job adds to it."""
    return Path(shutil.copytree(FOLDER, tmp_path / "checkpoint"))


def a_job(folder: Path, version: int = 2, parallelism: int = 2) -> StateJob:
    store = open_store(str(folder))
    return StateJob(specs(version), store=store, parallelism=parallelism, rules=RULES)


def a_reader(folder: Path) -> JobCheckpoints:
    """Look at a checkpoint without taking the job over: that would write."""
    return JobCheckpoints(open_store(str(folder)), JOB)


def named(batches: Sequence[pa.RecordBatch], version: int) -> list[tuple[Key, Any, int]]:
    """Read rows of key, name and time, those of one key in their order."""
    rows = []
    for batch in batches:
        columns: list[Any] = [batch.column(name) for name in ("text", "number")]
        columns += [
            batch.column(NAME_COLUMNS[version]),
            batch.column("time").cast(pa.int64()),
        ]
        for text, number, name, time in zip(*map(pa.Array.to_pylist, columns), strict=True):
            rows.append(((text, number), name, time))
    return sorted(rows, key=lambda row: str(row[0]))


def counted(version: int, count: int, by: str) -> tuple[Any, ...]:
    return {1: (count,), 2: (count, by), 3: (f"{count} by {by}",)}[version]


def as_read(name: str, version: int) -> Any:
    """What a name that version 2 reads is to other versions."""
    return {1: name.removeprefix("was "), 2: name, 3: len(name)}[version]


def check(managers: Sequence[TableManager], epoch: int, version: int = 2) -> None:
    """Compare everything that all subtasks see with what is known to be in an epoch."""
    for manager in managers:
        found = manager.get_global_keyed_state("counts").items()
        assert {
            key: tuple(getattr(v, f) for f in v.__struct_fields__) for key, v in found
        } == {
            key: counted(version, *value) for key, value in expected.COUNTS[epoch].items()
        }
        assert dict(manager.get_global_keyed_state("settings").items()) == expected.SETTINGS
    for table, contents in (("names", expected.NAMES), ("recent", expected.RECENT)):
        batches = [b for m in managers for b in m.get_keyed_state(table).scan()]
        assert named(batches, version) == sorted(
            ((k, as_read(n, version), t) for k, (n, t) in contents[epoch].items()),
            key=lambda row: str(row[0]),
        )
    for table, rows in (("panes", expected.PANES), ("marks", expected.MARKS)):
        batches = [b for m in managers for b in m.get_time_keyed_state(table).batches()]
        wanted = [(key, as_read(name, version), time) for key, name, time in rows[epoch]]
        assert sorted(map(str, named(batches, version))) == sorted(map(str, wanted))
        if table == "panes":
            assert named(batches, version) == sorted(wanted, key=lambda row: str(row[0]))
    check_types(managers, epoch)


def check_types(managers: Sequence[TableManager], epoch: int) -> None:
    """Look up every key ever written, in the table of all types."""
    contents = expected.TYPED_ROWS[epoch]
    for key in (LOW, HIGH, NULLS, PLAIN):
        probe = keys_of(key)
        (owner,) = [
            manager
            for manager in managers
            if [*own(probe, manager.environment.task.subtask)]
        ]
        answer = owner.get_keyed_state("types").get(probe)
        assert answer.found.tolist() == [key in contents]
        if key in contents:
            wanted = typed_rows((key, contents[key]))
            for name in wanted.schema.names:
                assert answer.rows.schema.field(name).type == wanted.schema.field(name).type
                assert spelled(answer.rows.column(name)) == spelled(wanted.column(name))


def loaded(job: StateJob, epoch: int, parallelism: int = 2) -> list[TableManager]:
    tables = job.specs[OPERATOR]
    return load_epoch(job.checkpoints, OPERATOR, tables, epoch, parallelism=parallelism)


def test_all_epochs_are_there_with_all_their_objects(folder: Path) -> None:
    job = a_job(folder)
    assert_job_is_whole(job.checkpoints)
    found = {int(one.record.ref.epoch): one for one in job.checkpoints.epochs()}
    assert sorted(found) == [2, 3, 4, 5]
    assert found[SAVED].savepoints == (SAVEPOINT,)
    assert all(isinstance(one.status, Ready) for one in found.values())


def test_the_open_commit_is_replayed_once(folder: Path) -> None:
    newest, *older = a_reader(folder).epochs()
    assert isinstance(newest.status, Committing)
    assert all(isinstance(one.status, Ready) for one in older)
    job = a_job(folder)
    found = {(epoch, index): data for epoch, _, index, _, data in job.sink}
    assert found == {(NEWEST, i): data for i, data in expected.SINK[NEWEST].items()}
    job.start()
    assert len(job.sink) == len(found)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_the_newest_epoch_is_restored_at_any_parallelism(
    folder: Path, parallelism: int
) -> None:
    job = a_job(folder, parallelism=parallelism)
    assert job.base is not None
    assert job.base.ref.epoch == NEWEST
    managers = job.open_subtasks()
    check([managers[OPERATOR, index] for index in range(parallelism)], NEWEST)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_savepoint_is_restored_by_every_version_of_the_program(
    folder: Path, version: int, parallelism: int
) -> None:
    job = a_job(folder)
    job.clock.micros = 0  # as if no time had passed since the savepoint
    job.start(
        restore=Epochs(savepoint=SAVEPOINT),
        specs=specs(version),
        parallelism=parallelism,
    )
    managers = job.open_subtasks()
    check([managers[OPERATOR, i] for i in range(parallelism)], SAVED, version)
    job.checkpoint_subtasks()


def test_the_next_version_reads_files_of_both_before_it(folder: Path) -> None:
    job = a_job(folder, version=3)
    assert job.manifest is not None
    plans = plan_table_restore(specs(3)[OPERATOR], job.metadata[OPERATOR])
    fates = {plan.table: plan for plan in plans}
    assert fates["names"].fate is TableFate.MIGRATED
    assert "1 → 2 (RowV2.migrate)" in fates["names"].detail
    assert "2 → 3 (RowV3.migrate)" in fates["names"].detail
    assert fates["types"].fate is TableFate.UNCHANGED
    check(loaded(job, NEWEST), NEWEST, 3)


def test_the_job_goes_on_is_compacted_and_collected(folder: Path) -> None:
    job = a_job(folder, parallelism=3)
    for index in range(3):
        job.compact(OPERATOR, index)
    job.run_epoch(watermark=1_100)
    check(loaded(job, NEWEST + 1), NEWEST)
    assert job.checkpoints.unpin(SAVEPOINT)
    job.checkpoints.collect(job.claim, keep_epochs=1)
    job.checkpoints.sweep(job.claim)
    assert [int(one.record.ref.epoch) for one in job.checkpoints.epochs()] == [NEWEST + 1]
    assert_job_is_whole(job.checkpoints)
    job.start(specs=specs(3), parallelism=1)
    check(list(job.open_subtasks().values()), NEWEST, 3)


def test_deletes_and_puts_meet_the_old_rows(folder: Path) -> None:
    job = a_job(folder, parallelism=1)
    (manager,) = job.open_subtasks().values()
    manager.get_keyed_state("types").delete(keys_of(LOW, NULLS))
    manager.get_keyed_state("names").put(named_rows(2, (PLAIN, "newer", 900)))
    assert job.publish(job.checkpoint_subtasks()) is None
    (manager,) = loaded(job, NEWEST + 1, 1)
    found = manager.get_keyed_state("types").get(keys_of(LOW, NULLS, PLAIN, HIGH)).found
    assert found.tolist() == [False, False, True, False]
    names = named(list(manager.get_keyed_state("names").scan()), 2)
    assert names == [(PLAIN, "newer", 900), (NULLS, "was null", 300)]


def test_it_holds_what_it_is_meant_to_prove() -> None:
    reader = a_reader(FOLDER)
    newest = reader.manifest(reader.epochs()[0].record.ref)
    files = [
        file
        for part in read_metadata(reader.store, newest)[OPERATOR].values()
        for table in part.table_checkpoint_metadata
        for file in files_of(part, table)
    ]
    assert {file.state_version for file in files} >= {0, 1, 2}
    assert any(file.replaces for file in files), "merged files"
    assert any(file.epoch < 3 and file.visible != FULL_RANGE for file in files), (
        "seen in part"
    )
    assert (
        sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 150_000
    )


def test_other_engines_read_its_files() -> None:
    pattern = str(FOLDER / "job" / "generations" / "1" / "**" / "names-*.parquet")
    query = (
        "select text, old_name from read_parquet($files) where _operation = 0 order by time"
    )
    found = duckdb.execute(query, {"files": pattern}).fetchall()
    assert found == [("", "low"), (HIGH[0], "h"), ("plain", "plain"), (None, "null")]


def names_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_the_script_still_writes_such_a_checkpoint(tmp_path: Path) -> None:
    """Not the same bytes: libraries change. The same objects, and all that is in them."""
    write_checkpoint(tmp_path / "again")
    assert names_in(tmp_path / "again") == names_in(FOLDER)
    check(loaded(a_job(tmp_path / "again"), NEWEST), NEWEST)
