"""Traps of exactly-once output to Delta tables, each met by others: no row twice, none lost.

Compaction between two commits; a restore below the last committed epoch; a branch; a commit whose
outcome is not known; two drivers that commit the same epoch; marks that the table forgets.
"""

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import penstock as pen
from penstock.connectors.delta.commit import app_of
from penstock.connectors.delta.sink import StagedEpoch
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, SchemaError, StateError
from penstock.state.protocol.retention import Epochs
from penstock.testing import CrashError, FaultMode, LocalJob
from tests.builders.delta_job import DeltaJob, TableCalls, numbers_in
from tests.builders.files_job import ROUNDS, rows_of, whole_epochs
from tests.builders.profile import by_profile

TASK = TaskInfo(JobId("delta"), OperatorId("out"), Subtask(0, 2))


def compact(folder: Path) -> None:
    """Rewrite all files of a table into one, and forget its log before a checkpoint."""
    table = DeltaTable(str(folder))
    table.optimize.compact()
    table.create_checkpoint()


def dies_after_commit(job: DeltaJob, count: int) -> None:
    """Run a job until it has made so many commits, and dies before it learns of the last."""
    calls = TableCalls()
    made = [0]

    def count_commits(name: str) -> None:
        if made[0] == count:
            raise CrashError(name)
        made[0] += name == "commit"

    calls.hook = count_commits
    with pytest.raises(CrashError):
        job.run(calls=calls)


def test_a_compaction_between_commit_and_its_repetition_does_not_hide_the_epoch(
    tmp_path: Path,
) -> None:
    # The file names of the epoch are not in the table any longer when its commit is repeated.
    for at in range(1, 12):
        job = DeltaJob(tmp_path / str(at))
        calls = TableCalls(FaultMode.CRASH_AFTER, at)
        try:
            job.run(calls=calls)
        except CrashError:
            if DeltaTable.is_deltatable(str(job.folder)):
                compact(job.folder)
        job.run()
        assert job.numbers() == whole_epochs(ROUNDS)


def test_a_vacuum_between_commit_and_its_repetition_does_not_stop_the_job(
    tmp_path: Path,
) -> None:
    # The files of the epoch are gone for good, and need not be there: it is recorded.
    undisturbed = DeltaJob(tmp_path / "first")
    undisturbed.run()
    at = undisturbed.calls.names.index("commit") + 1
    job = DeltaJob(tmp_path / "table")
    with pytest.raises(CrashError):
        job.run(calls=TableCalls(FaultMode.CRASH_AFTER, at))
    compact(job.folder)
    table = DeltaTable(str(job.folder))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    job.run()
    assert job.numbers() == whole_epochs(ROUNDS)


def test_a_compaction_during_a_commit_does_not_stop_it(tmp_path: Path) -> None:
    job = DeltaJob(tmp_path / "table")
    calls = TableCalls()

    def compact_before_commits(name: str) -> None:
        if name == "commit":
            compact(job.folder)

    calls.hook = compact_before_commits
    job.run(calls=calls)
    assert job.numbers() == whole_epochs(ROUNDS)


def test_after_a_restore_below_the_last_committed_epoch_each_row_is_there_once(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table", {"partition_by": ["day"]})
    job.run()
    job.run(restore=1, parallelism=1)
    assert job.numbers() == whole_epochs(ROUNDS)
    # Undoing it is another restore: what it took out comes back.
    job.run(restore=3, parallelism=3)
    assert job.numbers() == whole_epochs(ROUNDS)
    files = DeltaTable(str(job.folder)).file_uris()
    assert not any("part-0000000005" in path or "part-0000000006" in path for path in files)


@pytest.mark.slow
def test_a_restore_that_dies_at_any_call_leaves_each_row_there_once(tmp_path: Path) -> None:
    for at in range(1, 12, by_profile(default=3, ci=2, nightly=1)):
        for mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.FAIL_AFTER):
            job = DeltaJob(tmp_path / f"{at}-{mode}")
            job.run()
            with suppress(CrashError, pen.PenstockError):
                job.run(restore=1, calls=TableCalls(mode, at))
            job.run(parallelism=1)
            assert job.numbers() == whole_epochs(ROUNDS)


def test_rows_of_abandoned_epochs_that_were_compacted_are_told_by_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = DeltaJob(tmp_path / "table")
    job.run()
    compact(job.folder)
    with caplog.at_level(logging.WARNING):
        job.run(restore=2)
    assert "rows of the abandoned epochs 3 to 4 stay in" in caplog.text
    assert "were compacted since" in caplog.text
    # They are twice in the table, as the warning says; nothing is lost.
    assert sorted(set(job.numbers())) == whole_epochs(ROUNDS)


# Deletes row 0 of its file: a bitmap of 34 bytes, written into the log entry itself.
VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000",
    "sizeInBytes": 34,
    "cardinality": 1,
}


def delete_by_vector(folder: Path, epoch: int) -> None:
    """Delete a row of each file of an epoch as another writer does, by a deletion vector."""
    table = DeltaTable(str(folder))
    entry = folder / "_delta_log" / f"{table.version() + 1:020}.json"
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions: list[Any] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}}
    ]
    for path in folder.glob(f"part-{epoch:010}-*.parquet"):
        file = {"path": path.name, "dataChange": True, "size": path.stat().st_size}
        values: dict[str, str] = {}
        stats = json.dumps({"numRecords": pq.read_metadata(path).num_rows})
        added = {**file, "partitionValues": values, "modificationTime": 0, "stats": stats}
        actions += [
            {"remove": {**file, "partitionValues": values, "deletionTimestamp": 0}},
            {"add": {**added, "deletionVector": VECTOR}},
        ]
    entry.write_text("\n".join(map(json.dumps, actions)))


def test_rows_that_a_deletion_vector_took_are_told_by_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = DeltaJob(tmp_path / "table")
    job.run()
    delete_by_vector(job.folder, 3)
    job.run(restore=1)
    assert "rows of the abandoned epochs 2 to" in caplog.text
    assert "have a deletion vector" in caplog.text
    # Files of epoch 3 stay as the other writer left them, those of epoch 2 are taken out.
    names = [Path(path).name for path in DeltaTable(str(job.folder)).file_uris()]
    assert any(name.startswith("part-0000000003") for name in names)
    assert not any(name.startswith("part-0000000002") for name in names)


def test_a_branch_writes_under_an_app_of_its_own_and_skips_nothing(tmp_path: Path) -> None:
    job = DeltaJob(tmp_path / "table")
    job.run()
    job.job.checkpoints.branch(JobId("branch"), Epochs(Epoch(1)))
    branch = DeltaJob(tmp_path / "table", name="branch")
    branch.job = LocalJob(
        branch.job.graph, registry=branch.job.registry, store=job.job.store
    )
    branch.run()
    # The branch goes on from epoch 1 with lower numbers than the table has of its origin.
    later = [n for n in whole_epochs(ROUNDS) if n not in whole_epochs(1)]
    assert job.numbers() == sorted([*whole_epochs(ROUNDS), *later])
    apps = [app_of(TASK, ""), "penstock:branch:out"]
    table = DeltaTable(str(job.folder))
    # Under one app all that the branch commits would be taken for done.
    assert [table.transaction_version(app.rstrip(":")) for app in apps] == [3, 3]


def versions_with_rows(folder: Path) -> int:
    """Return how many versions of a table have added files."""
    entries = (folder / "_delta_log").glob("*.json")
    return sum('"add":' in entry.read_text() for entry in entries)


@pytest.mark.parametrize("mode", [FaultMode.FAIL_BEFORE, FaultMode.FAIL_AFTER])
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_a_commit_of_unknown_outcome_is_looked_for_before_it_is_made_again(
    tmp_path: Path, mode: FaultMode, *, dies: bool
) -> None:
    undisturbed = DeltaJob(tmp_path / "first")
    undisturbed.run()
    names = undisturbed.calls.names
    commits = [at for at, name in enumerate(names, 1) if name == "commit"]
    assert len(commits) == ROUNDS
    for number, at in enumerate(commits):
        job = DeltaJob(tmp_path / str(number))
        calls = TableCalls(mode, at)

        def die_later(name: str, calls: TableCalls = calls, at: int = at) -> None:
            if dies and len(calls.names) > at:
                raise CrashError(name)

        calls.hook = die_later
        if dies:
            # Nothing but the table knows now whether the commit was carried out.
            with pytest.raises(CrashError):
                job.run(calls=calls)
            landed = number + (mode is FaultMode.FAIL_AFTER)
            assert job.numbers() == whole_epochs(landed)
        else:
            job.run(calls=calls)
            repeats = mode is FaultMode.FAIL_BEFORE
            assert calls.names[at] == "open"
            assert calls.names.count("commit") == ROUNDS + repeats
        status = job.run(parallelism=1 + number)
        assert status.phase is pen.JobPhase.FINISHED
        assert job.numbers() == whole_epochs(ROUNDS)
        assert versions_with_rows(job.folder) == ROUNDS


def test_two_drivers_that_commit_the_same_epoch_at_once_commit_it_once(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table")
    zombie = DeltaJob(tmp_path / "table")
    zombie.job = LocalJob(
        zombie.job.graph, registry=zombie.job.registry, store=job.job.store
    )
    calls = TableCalls()
    others = [0]

    def run_another_driver(name: str) -> None:
        # It takes the job over while the first is about to commit what it has read.
        if name == "commit" and not others[0]:
            others[0] += 1
            zombie.run(parallelism=1)

    calls.hook = run_another_driver
    with pytest.raises(pen.PenstockError):
        job.run(calls=calls)
    assert others == [1]
    assert job.numbers() == whole_epochs(ROUNDS)
    job.run()
    assert job.numbers() == whole_epochs(ROUNDS)


def test_a_zombie_whose_epoch_was_abandoned_commits_nothing(tmp_path: Path) -> None:
    job = DeltaJob(tmp_path / "table")
    other = DeltaJob(tmp_path / "table")
    other.job = LocalJob(other.job.graph, registry=other.job.registry, store=job.job.store)
    calls = TableCalls()
    commits = [0]

    def restore_elsewhere(name: str) -> None:
        commits[0] += name == "commit"
        if name == "commit" and commits[0] == ROUNDS:
            other.run(restore=1)

    calls.hook = restore_elsewhere
    with pytest.raises(pen.PenstockError):
        job.run(calls=calls)
    assert job.numbers() == whole_epochs(ROUNDS)


def test_other_writers_at_the_same_time_are_neither_lost_nor_in_the_way(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table")
    calls = TableCalls()
    written: list[int] = []

    def write_too(name: str) -> None:
        if name == "commit":
            written.append(1_000 + len(written))
            row = pa.Table.from_pylist([{"n": written[-1], "day": "x"}])
            write_deltalake(str(job.folder), row, mode="append")

    calls.hook = write_too
    job.run(calls=calls)
    assert job.numbers() == sorted([*whole_epochs(ROUNDS), *written])
    assert len(written) >= ROUNDS


def test_a_commit_that_is_overtaken_by_another_of_its_app_is_not_made(
    tmp_path: Path,
) -> None:
    # Another driver records the epoch between our look and our commit: Delta itself takes a
    # number that is recorded already, so only the conflict tells.
    job = DeltaJob(tmp_path / "table")
    calls = TableCalls()
    commits = [0]

    def record_the_epoch(name: str) -> None:
        commits[0] += name == "commit"
        if name == "commit" and commits[0] == 2:
            app = app_of(TASK, job.job.checkpoints.identity() or "")
            table = DeltaTable(str(job.folder))
            mark = CommitProperties(app_transactions=[Transaction(app, 2)])
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=mark
            )

    calls.hook = record_the_epoch
    job.run(calls=calls)
    second = {n for n in whole_epochs(2) if n not in whole_epochs(1)}
    # What the other driver is said to have added is not added by this one.
    assert set(job.numbers()) == set(whole_epochs(ROUNDS)) - second
    assert len(job.numbers()) == len(set(job.numbers()))


def test_checkpoints_that_do_not_belong_to_the_table_are_refused_before_the_claim(
    tmp_path: Path,
) -> None:
    DeltaJob(tmp_path / "table").run()
    anew = DeltaJob(tmp_path / "table")  # the same job, its checkpoints are gone
    with pytest.raises(StateError, match="checkpoints have none of this job") as caught:
        anew.run()
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT
    assert numbers_in(tmp_path / "table") == whole_epochs(ROUNDS)
    assert not list(anew.job.store.list(""))


def test_a_table_that_forgets_its_marks_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.Table.from_pylist(rows_of(0, 9))
    kept = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    write_deltalake(str(tmp_path / "table"), rows, configuration=kept)
    job = DeltaJob(tmp_path / "table")
    with caplog.at_level(logging.WARNING):
        job.run()
    assert "forgets which epochs it has after interval 1 days" in caplog.text


def test_a_vacuum_removes_what_dead_attempts_left_and_nothing_of_the_table(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table")
    dies_after_commit(job, 2)
    job.run()
    parts = {path.name for path in job.folder.glob("*.parquet")}
    table = DeltaTable(str(job.folder))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    kept = {path.name for path in job.folder.glob("*.parquet")}
    assert kept <= parts
    assert job.numbers() == whole_epochs(ROUNDS)
    assert len(kept) == len(DeltaTable(str(job.folder)).file_uris())


def test_a_table_that_is_deleted_while_the_job_runs_is_made_anew_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = DeltaJob(tmp_path / "table")
    calls = TableCalls()
    commits = [0]

    def delete_once(name: str) -> None:
        commits[0] += name == "commit"
        if name == "open" and commits[0] == 1:
            commits[0] += 1
            shutil.rmtree(job.folder / "_delta_log")

    calls.hook = delete_once
    job.run(calls=calls)
    assert "is gone, to which this job has written" in caplog.text
    assert set(job.numbers()) == set(whole_epochs(ROUNDS)) - set(whole_epochs(1))


def by_column(folder: Path, column: str, like: LocalJob | None = None) -> DeltaJob:
    """Return a job that writes a table by a column, with the checkpoints of another one."""
    job = DeltaJob(folder, {"partition_by": [column]})
    if like is not None:
        job.job = LocalJob(job.job.graph, registry=job.job.registry, store=like.store)
    return job


def test_an_epoch_that_waits_for_its_commit_is_not_committed_by_other_partitions(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "table"
    first = by_column(folder, "day")
    calls = TableCalls()

    def die_before_the_table(name: str) -> None:
        if name == "create":
            raise CrashError(name)

    calls.hook = die_before_the_table
    with pytest.raises(CrashError):
        first.run(calls=calls)
    assert not DeltaTable.is_deltatable(str(folder))
    other = by_column(folder, "n", first.job)
    with pytest.raises(SchemaError, match=r"Start the job with partition_by=\['day'\]"):
        other.run()
    assert not DeltaTable.is_deltatable(str(folder))
    # What the message says to do works.
    first.run()
    assert first.numbers() == whole_epochs(ROUNDS)
    assert DeltaTable(str(folder)).metadata().partition_columns == ["day"]


def test_commit_data_of_older_programs_have_the_partitions_of_the_sink() -> None:
    given = msgspec.json.encode({"columns": "", "files": []})
    assert msgspec.json.decode(given, type=StagedEpoch).partition_by is None
