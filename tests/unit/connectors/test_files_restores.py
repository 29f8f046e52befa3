"""What readers of output files see after a restore: each row once, abandoned epochs no more."""

from pathlib import Path

import polars as pl
import pytest

import penstock as pen
from penstock.connectors.files.committed import (
    CommittedEpoch,
    EpochRange,
    committed_files,
    drop_abandoned,
    read_committed,
)
from penstock.core.ids import Epoch, SavepointName
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import CUT, EOF, LocalJob, ScriptedSource
from tests.builders.files_job import (
    ROUNDS,
    FilesJob,
    as_list_of_version_1,
    parts_in,
    paths_in,
)


def a_list(
    epoch: int, *abandoned: EpochRange, job: str = "shop", operator: str = "out"
) -> CommittedEpoch:
    return CommittedEpoch(
        job=job,
        identity="",
        operator=operator,
        epoch=epoch,
        format="parquet",
        schema="",
        schema_hash="",
        partition_by=(),
        rows=0,
        bytes=0,
        files=(),
        abandoned=abandoned,
    )


def kept(*lists: CommittedEpoch) -> list[int]:
    return [record.epoch for record in drop_abandoned(lists)]


def epochs_in(store: ObjectStore | str) -> list[int]:
    return sorted({file.epoch for file in committed_files(store)})


def rows_of(job: FilesJob) -> list[int]:
    return sorted(row["n"] for row in read_committed(job.inner).to_pylist())


def test_without_a_restore_every_epoch_counts() -> None:
    assert kept(a_list(1), a_list(4), a_list(2)) == [1, 2, 4]


def test_what_a_restore_abandoned_is_left_out() -> None:
    old = [a_list(epoch) for epoch in (1, 2, 3, 4, 5)]
    assert kept(*old) == [1, 2, 3, 4, 5]
    assert kept(*old, a_list(6, (3, 6))) == [1, 2, 6]
    assert kept(*old, a_list(6, (3, 6)), a_list(7, (3, 6))) == [1, 2, 6, 7]


def test_any_later_list_tells_of_a_restore() -> None:
    # A listing may lag: the first list after the restore is not there yet.
    assert kept(a_list(1), a_list(3), a_list(7, (3, 6))) == [1, 7]


def test_a_restore_that_is_undone_brings_back_what_it_abandoned() -> None:
    old = [a_list(epoch) for epoch in (1, 2, 3, 4)]
    after = [a_list(5, (3, 5)), a_list(6, (3, 5))]
    assert kept(*old, *after, a_list(7, (5, 7))) == [1, 2, 3, 4, 7]


def test_a_list_that_comes_late_does_not_come_back() -> None:
    # A driver that was replaced goes on with the commit of an epoch that is abandoned by now.
    assert kept(a_list(4), a_list(6, (5, 6))) == [4, 6]
    assert kept(a_list(4), a_list(6, (5, 6)), a_list(5)) == [4, 6]


def test_a_sink_that_is_new_or_gone_does_not_bring_abandoned_epochs_back() -> None:
    gone = [a_list(epoch, operator="gone") for epoch in (1, 2, 3)]
    assert kept(*gone, a_list(4, (2, 4))) == [1, 4]
    assert kept(*gone, a_list(4, (2, 4)), a_list(9, operator="new")) == [1, 4, 9]


def test_other_jobs_do_not_count() -> None:
    assert kept(a_list(3, job="other"), a_list(6, (2, 6))) == [3, 6]


def test_after_a_restore_each_row_is_read_once() -> None:
    job = FilesJob()
    job.run()
    whole = rows_of(job)
    before = parts_in(job.inner)
    job.run(restore=1)
    assert rows_of(job) == whole
    assert len(epochs_in(job.inner)) == ROUNDS
    assert epochs_in(job.inner)[0] == 1
    assert epochs_in(job.inner)[1] > ROUNDS
    # The files are left where they are.
    assert set(before) < set(parts_in(job.inner))


def test_until_the_first_epoch_after_a_restore_the_old_output_is_read() -> None:
    job = FilesJob()
    job.run()
    job.run(restore=1)
    newest = max(epochs_in(job.inner))
    for path in paths_in(job.inner, "_committed"):
        if int(path.split("/")[1][:10]) > ROUNDS:
            job.inner.delete(path)
    assert epochs_in(job.inner) == [1, 2, 3]
    assert newest > ROUNDS


def test_a_reader_of_new_epochs_only_gets_no_abandoned_ones() -> None:
    job = FilesJob()
    job.run()
    job.run(restore=1)
    files = committed_files(job.inner, since_epoch=2)
    assert min(file.epoch for file in files) > ROUNDS


@pytest.mark.parametrize("parallelism", [1, 3])
def test_restores_of_restores_and_back(parallelism: int) -> None:
    job = FilesJob()
    job.run()
    whole = rows_of(job)
    lines = [epochs_in(job.inner)]
    checkpoints = job.job.checkpoints
    checkpoints.pin(SavepointName("first-line"), Epochs(Epoch(2)))
    job.run(restore=1, parallelism=parallelism)
    lines.append(epochs_in(job.inner))
    job.run(restore=lines[1][1])
    lines.append(epochs_in(job.inner))
    assert lines[2][:2] == lines[1][:2]
    # Undone: epoch 2 was abandoned by the first restore.
    job.run(restore=2, parallelism=parallelism)
    lines.append(epochs_in(job.inner))
    assert lines[3][:2] == [1, 2]
    assert lines[3][2] > lines[2][2]
    assert rows_of(job) == whole


def a_pausing_job(out: str) -> LocalJob:
    """Three epochs with rows; after a restore of 1 the first epoch has none for "late"."""
    script = [
        [{"n": 1, "late": False}],
        CUT,
        [{"n": 2, "late": False}],
        CUT,
        [{"n": 3, "late": True}],
        CUT,
        EOF,
    ]
    pipeline = pen.Pipeline("pausing")
    rows = pipeline.read("rows", ScriptedSource(script))
    rows.filter(pl.col("late")).write("late", pen.files(out))
    rows.write("all", pen.blackhole())
    return LocalJob(pipeline)


def numbers_in(out: str) -> list[int]:
    return sorted(row["n"] for row in pen.read_committed(out).to_pylist())


def test_a_sink_without_rows_in_the_first_epoch_tells_of_the_restore_too(
    tmp_path: Path,
) -> None:
    out = str(tmp_path / "out")
    job = a_pausing_job(out)
    job.run()
    assert numbers_in(out) == [3]
    job.run(restore=Epochs(Epoch(1)), epochs=1)
    # Row 3 will come again: until it does, it is no part of the output.
    assert numbers_in(out) == []
    job.run()
    assert numbers_in(out) == [3]
    lists = paths_in(open_store(out), "_committed")
    assert len(lists) == 3, "the old list, an empty one, and the new one"


def test_a_restore_that_abandons_nothing_writes_nothing(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    job = a_pausing_job(out)
    job.run(epochs=2)
    newest = job.checkpoints.newest()
    assert newest is not None
    job.run(restore=Epochs(newest.ref.epoch))
    assert numbers_in(out) == [3]
    assert len(paths_in(open_store(out), "_committed")) == 1


def test_lists_of_before_restores_were_told_are_read() -> None:
    job = FilesJob()
    job.run()
    whole = rows_of(job)
    for path in paths_in(job.inner, "_committed"):
        text = job.inner.read(path)
        assert text is not None
        assert b'"abandoned": []' in text
        old = as_list_of_version_1(text)
        job.inner.put(path, old.replace(b',\n "abandoned": []', b""))
    assert rows_of(job) == whole
    job.run(restore=1)
    assert rows_of(job) == whole
