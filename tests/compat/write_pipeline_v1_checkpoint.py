"""Write the checkpoint of a whole pipeline that every later version has to go on from.

    python -m tests.compat.write_pipeline_v1_checkpoint

writes `tests/compat/checkpoints/pipeline-v1`, which is committed. It was written by commit
328a859, before much of the code was rearranged. It stays as it is for ever, and the script
refuses to overwrite it: what a later version writes proves nothing about jobs that an earlier
one has left behind.

What is in it:

| Path             | What                                                                  |
|------------------|-----------------------------------------------------------------------|
| `inputs/`        | six files of JSON lines, an hour of rows                              |
| `checkpoint/`    | the job after six epochs of two subtasks and a stop after a checkpoint |
| `outputs/`       | what its eight sinks had committed by then                            |
| `expected.jsonl` | the rows at the end of a run that nobody stopped                      |

At the stop two files are half-read. Panes, sessions, timers by both clocks and async calls
are open, some calls answered behind others that are not. The job has read its inputs from a
store in memory, so no path of a machine is in the bytes; `moved_from` tells that they are
files now.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import penstock as pen
from penstock.core.settings import CompactionSettings
from penstock.operators import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.files.state_file import StateFile
from penstock.state.storage.urls import open_store
from penstock.testing import LocalJob, ManualClock, assert_job_is_whole
from tests.builders.kept_epochs import files_of, read_metadata
from tests.compat.pipeline_v1_program import (
    CLOCK_START,
    MINUTE,
    STATE,
    Row,
    build,
    final_rows,
    input_rows,
)

FOLDER = Path(__file__).parent / "checkpoints" / "pipeline-v1"
IN_MEMORY = "memory:pipeline-v1-inputs"
"""Where the inputs were when the job began to read them."""
FILES = 6
EPOCHS = 6
"""How many epochs read rows before the stop, which takes one more."""
RESUMED = CLOCK_START + EPOCHS * 10 * MINUTE
"""What the clock shows at the stop, or somewhat less."""
ROWS_PER_EPOCH = 10
EAGER = CompactionSettings(min_files=2, min_expiring_files=2, max_runs=3)


def a_job(
    pipeline: pen.Pipeline,
    checkpoint: str | Path,
    *,
    clock_micros: int = CLOCK_START,
    compaction: CompactionSettings | None = None,
) -> LocalJob:
    """Prepare a job of small epochs, by a manual clock."""
    settings = DriverSettings(
        keep_epochs=2,
        collect_every=2,
        budget=SourceBudget(rows=ROWS_PER_EPOCH),
        adapts_budget=False,
        compaction=compaction or CompactionSettings(),
    )
    store = open_store(str(checkpoint), durable=False)
    clock = ManualClock(clock_micros)
    return LocalJob(pipeline, store=store, clock=clock, settings=settings)


def run(job: LocalJob, epochs: int | None = None) -> None:
    """Run a job to its end, or stop it after some epochs; each takes ten minutes."""

    def pass_time(level: int) -> None:
        job.clock.advance(10 * MINUTE if level == 0 else 0)

    status = job.run(epochs=epochs, between_supersteps=pass_time)
    wanted = pen.JobPhase.FINISHED if epochs is None else pen.JobPhase.STOPPED
    assert status.phase is wanted, status
    assert_job_is_whole(job.checkpoints)


def write_inputs(folder: Path) -> None:
    """Write the files, and put them into the store that the job reads."""
    folder.mkdir(parents=True)
    rows, store = input_rows(), open_store(IN_MEMORY)
    size = len(rows) // FILES
    for index in range(FILES):
        end = None if index == FILES - 1 else (index + 1) * size
        lines = (json.dumps(row) + "\n" for row in rows[index * size : end])
        data = "".join(lines).encode()
        (folder / f"part-{index}.jsonl").write_bytes(data)
        store.create(f"part-{index}.jsonl", data)
        assert store.read(f"part-{index}.jsonl") == data


def state_files(job: LocalJob) -> dict[tuple[str, str], list[StateFile]]:
    """Return the state files that the newest epoch needs, by operator and table."""
    manifest = job.checkpoints.manifest(job.checkpoints.epochs()[0].record.ref)
    found: dict[tuple[str, str], list[StateFile]] = {}
    for operator, subtasks in read_metadata(job.store, manifest).items():
        for metadata in subtasks.values():
            for table in metadata.table_configs:
                found.setdefault((operator, table), []).extend(files_of(metadata, table))
    return found


def read_expected(folder: Path) -> dict[str, list[Row]]:
    """Return the rows that every run must end with, by sink."""
    found: dict[str, list[Row]] = {}
    for line in (folder / "expected.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("sink"), []).append(row)
    return found


def write_checkpoint(folder: Path) -> None:
    """Write everything, and check on the way that the job itself can go on from it."""
    write_inputs(folder / "inputs")
    stopped = a_job(
        build(IN_MEMORY, folder / "outputs", is_up=False), folder / "checkpoint"
    )
    run(stopped, EPOCHS)
    files = state_files(stopped)
    assert all(sum(file.row_count for file in files[table]) for table in STATE), files
    with tempfile.TemporaryDirectory() as scratch:
        run(a_job(build(IN_MEMORY, f"{scratch}/outputs"), f"{scratch}/checkpoint"))
        expected = final_rows(f"{scratch}/outputs")
        copy = Path(shutil.copytree(folder, f"{scratch}/copy"))
        rest = build(IN_MEMORY, copy / "outputs", goes_on=True)
        run(a_job(rest, copy / "checkpoint", clock_micros=RESUMED))
        assert final_rows(copy / "outputs") == expected
    lines = (
        json.dumps({"sink": sink, **row}) for sink in expected for row in expected[sink]
    )
    text = "".join(f"{line}\n" for line in lines)
    (folder / "expected.jsonl").write_text(text, encoding="utf-8")
    assert read_expected(folder) == expected


if __name__ == "__main__":
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: read the first lines of this file before deleting it")
    write_checkpoint(FOLDER)
