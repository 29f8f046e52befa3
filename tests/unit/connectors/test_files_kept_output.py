"""Output whose checkpoints are gone, or that another job wrote, is found before the start."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as pen
from penstock.connectors.files.output.commit import check_unknown_epochs
from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, StateError
from penstock.operators.context import StartContext
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectInfo
from penstock.testing import CUT, LocalJob, ScriptedSource, stored_objects
from tests.builders.files_job import FilesJob


def writing(out: Path, *, job: str = "writing", step: str = "out") -> pen.Pipeline:
    pipeline = pen.Pipeline(job)
    script = [step for n in range(3) for step in ([{"n": n}], CUT)]
    pipeline.read("rows", ScriptedSource(script)).write(step, pen.files(str(out)))
    return pipeline


def numbers_in(out: Path) -> list[int]:
    return sorted(row["n"] for row in pen.read_committed(str(out)).to_pylist())


def test_checkpoints_deleted_while_output_is_kept_are_found_before_the_start(
    tmp_path: Path,
) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    writing(out).run_in_process(str(checkpoints))
    shutil.rmtree(checkpoints)
    before = stored_objects(LocalStore(out))

    with pytest.raises(StateError) as raised:
        writing(out).run_in_process(str(checkpoints))

    assert raised.value.code is ErrorCode.FOREIGN_OBJECT
    message = raised.value.message
    assert "step 'out' of job 'writing'" in message
    assert "3 epoch(s) of a step of this name from 1 to 3" in message
    assert "has none of this job: the checkpoints were deleted" in message
    assert stored_objects(LocalStore(out)) == before
    assert not list(checkpoints.rglob("claim"))


def test_the_old_output_may_be_removed_as_the_error_says(tmp_path: Path) -> None:
    out = tmp_path / "out"
    writing(out).run_in_process("memory:")
    with pytest.raises(StateError, match="remove the old output"):
        writing(out).run_in_process("memory:")
    shutil.rmtree(out)
    writing(out).run_in_process("memory:")
    assert numbers_in(out) == [0, 1, 2]


def test_another_folder_may_be_written_to_as_the_error_says(tmp_path: Path) -> None:
    writing(tmp_path / "a").run_in_process("memory:")
    with pytest.raises(StateError, match="write to another folder"):
        writing(tmp_path / "a").run_in_process("memory:")
    writing(tmp_path / "b").run_in_process("memory:")
    assert numbers_in(tmp_path / "b") == [0, 1, 2]


def test_an_older_copy_of_the_checkpoints_is_found_too(tmp_path: Path) -> None:
    out, store = tmp_path / "out", MemoryStore()
    job = LocalJob(writing(out), store=store)
    job.run(epochs=1)
    copied = MemoryStore()
    for path, data in store.contents().items():
        copied.put(path, data)
    job.run()
    with pytest.raises(
        StateError, match="from 2 to 3, and the checkpoint knows none after 1"
    ):
        LocalJob(writing(out), store=copied).run()


def test_the_output_of_another_job_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    writing(out, job="first").run_in_process("memory:")
    with pytest.raises(StateError, match="job 'first' has written them"):
        writing(out, job="second").run_in_process("memory:")


def test_steps_of_other_names_may_share_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    writing(out, job="first", step="one").run_in_process("memory:")
    writing(out, job="second", step="two").run_in_process("memory:")
    assert numbers_in(out) == [0, 0, 1, 1, 2, 2]


def test_a_job_that_goes_on_or_goes_back_knows_its_output(tmp_path: Path) -> None:
    job = LocalJob(writing(tmp_path / "out"))
    job.run(epochs=1)
    job.run()
    job.run(restore=Epochs(Epoch(1)))
    assert numbers_in(tmp_path / "out") == [0, 1, 2]


def test_a_driver_that_commits_meanwhile_is_not_taken_for_a_stranger() -> None:
    job = FilesJob()
    job.run()
    acknowledged = [0]

    class Moving(MemoryStore):
        """The other driver acknowledges and commits just before the listing."""

        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            acknowledged[0] = job.job.checkpoints.last_epoch()
            return job.inner.list(prefix)

    task = TaskInfo(job.job.graph.job, OperatorId("out"), Subtask(0, 1))
    check_unknown_epochs(Moving(), StartContext(task, None, lambda: acknowledged[0]))
    assert acknowledged[0] >= 3
