"""Object stores that fail, lose answers or fill up below a job on Spark."""

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.settings import CompactionSettings
from penstock.errors import ExternalError, StorageError
from penstock.runtime.driver.policies import RestartPolicy
from penstock.testing import Call, Fault, FaultMode, FaultyStore, Lands
from tests.builders.kept_epochs import remount, small_disk
from tests.builders.profile import takes_long
from tests.builders.spark_session import claim, marks_in, shared_session
from tests.spark.counting_job import SETTINGS, CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ON_WORKERS = {
    "a-state-file": ("create", "*.parquet", None),
    "reading-metadata": ("read", "*.metadata", None),
}
ON_THE_DRIVER = {
    "metadata": ("create", "*.metadata", 3),
    "a-manifest": ("create", "*/manifest.pb", 2),
    "an-epoch-record": ("create", "*/epochs/*", 3),
    "a-commit-marker": ("create", "*/committed", 2),
    "deleting": ("delete", "*/generations/*", 1),
}
FAULTS = {
    "nothing is written": (FaultMode.FAIL_BEFORE, Lands.NEVER),
    "it is written and an error comes back": (FaultMode.FAIL_AFTER, Lands.NEVER),
    "it is written and no answer comes back": (FaultMode.LOSE_RESPONSE, Lands.NOW),
    "nothing is written and no answer comes back": (FaultMode.LOSE_RESPONSE, Lands.NEVER),
}
FULL_DISKS = [("checkpoints", "256k"), ("out", "48k")]


@dataclass(frozen=True)
class First:
    """Chooses one call among those of all processes, and tells the test that it was met.

    A worker that failed is replaced, and its successor counts calls from the beginning.
    """

    marks: Path
    name: str

    def __call__(self, call: Call) -> bool:
        return claim(self.marks, self.name)


@pytest.mark.parametrize("fault", FAULTS)
def test_calls_to_the_store_that_fail_lose_and_double_nothing(
    tmp_path: Path, fault: str
) -> None:
    mode, lands = FAULTS[fault]
    marks = tmp_path / "marks"
    marks.mkdir()
    job = CountingJob(tmp_path)
    faults = []
    for name, (operation, path, at) in {**ON_WORKERS, **ON_THE_DRIVER}.items():
        first = First(marks, name)
        faults.append(Fault(mode, at, operation, path, lands, when=first))
    status = job.run(session=shared_session(), store=FaultyStore(job.store, *faults))
    assert marks_in(marks) == {*ON_WORKERS, *ON_THE_DRIVER}
    assert status.phase == "finished"
    assert status.torn_epochs == 0
    job.check()


@dataclass(frozen=True)
class Raise:
    """A hook that fails every call with one error."""

    error: Exception

    def __call__(self, call: Call) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "small_bytes"),
    [
        pytest.param(StorageError("not now"), 4 << 20, id="storage"),
        pytest.param(OSError(28, "No space left on device"), 4 << 20, id="full-disk"),
        pytest.param(pa.ArrowInvalid("not Parquet"), 4 << 20, id="arrow"),
        pytest.param(StorageError("not now"), -1, id="in-a-spark-job"),
    ],
)
def test_compactions_that_fail_harm_no_epoch_and_are_ordered_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    small_bytes: int,
) -> None:
    monkeypatch.setattr("penstock.runtime.spark.executor._SMALL_BYTES", small_bytes)
    job = CountingJob(tmp_path, rows=2_000)
    often = replace(SETTINGS, compaction=CompactionSettings(min_files=2))
    fault = Fault(FaultMode.DELAY, None, "create", "*compacted*", hook=Raise(error))
    status = job.run(
        session=shared_session(), store=FaultyStore(job.store, fault), settings=often
    )
    said = [text for text in caplog.messages if "ordered again" in text]
    assert len(said) >= 2
    assert all(str(error) in text for text in said)
    assert (status.phase, status.restarts) == ("finished", 0)
    job.check()


@pytest.mark.parametrize(("full", "size"), FULL_DISKS)
@takes_long
def test_a_full_disk_stops_the_job_and_with_more_space_it_goes_on(
    tmp_path: Path, full: str, size: str
) -> None:
    job = CountingJob(tmp_path, rows=2_000)
    once = replace(SETTINGS, restarts=RestartPolicy(1, first_delay_micros=1_000))
    with small_disk(tmp_path / full, size):
        with pytest.raises((StorageError, ExternalError), match="space") as raised:
            job.run(session=shared_session(), settings=once)
        assert str(tmp_path / full) in str(raised.value)
        epochs = [epoch.record.ref.epoch for epoch in job.checkpoints.epochs()]
        assert epochs, "it filled up before anything was acknowledged"
        remount(tmp_path / full, "size=16m")
        status = job.run(session=shared_session())
        assert status.phase == "finished"
        job.check()
