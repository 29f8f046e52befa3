"""The warning of a restore: which abandoned epochs had output, and by which sinks it left."""

import logging

import pytest

import penstock as pen
from penstock.core.ids import Epoch
from penstock.runtime.driver.restores import format_epochs
from penstock.state.protocol import paths
from penstock.state.protocol.records import CheckpointRef
from penstock.state.protocol.retention import Epochs
from penstock.testing import CUT, LocalJob, ScriptedSource
from tests.builders.files_job import FilesJob

NAME = "penstock.runtime.driver.restores"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == NAME]


def test_neighbours_are_shown_as_ranges() -> None:
    assert format_epochs([9]) == "9"
    assert format_epochs([9, 3, 1, 2, 8]) == "1 to 3, 8 to 9"


def test_a_restore_names_the_epochs_whose_output_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = FilesJob()
    job.run()
    assert warnings_of(caplog) == []
    job.run(restore=1)
    [text] = warnings_of(caplog)
    assert "epoch 1 of job files is restored" in text
    assert "epoch(s) 2 to 4 are abandoned" in text
    assert "by its sinks 'out'" in text
    assert "cannot be taken back" in text
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_start_without_a_restore_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    job = FilesJob()
    job.run()
    job.run()
    assert warnings_of(caplog) == []


def test_without_output_there_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = pen.Pipeline("silent")
    rows = pipeline.read("rows", ScriptedSource([[{"n": 1}], CUT, [{"n": 2}], CUT]))
    rows.write("out", pen.blackhole())
    job = LocalJob(pipeline)
    job.run()
    job.run(restore=Epochs(Epoch(1)))
    assert warnings_of(caplog) == []


def test_a_restore_that_abandons_nothing_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = FilesJob()
    job.run()
    newest = job.job.checkpoints.newest()
    assert newest is not None
    job.run(restore=int(newest.ref.epoch))
    assert warnings_of(caplog) == []


def test_an_epoch_that_cannot_be_read_is_named_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = FilesJob()
    job.run()
    epochs = {epoch.record.ref.epoch: epoch for epoch in job.job.checkpoints.epochs()}
    ref: CheckpointRef = epochs[Epoch(2)].record.ref
    job.job.store.put(paths.manifest_path(ref), b"damaged")
    job.run(restore=1)
    [text] = warnings_of(caplog)
    assert "2 to 4 are abandoned" in text
