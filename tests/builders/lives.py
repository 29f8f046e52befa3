"""The lives of a job: drivers of any parallelism, each of which is stopped or dies in its time."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from hypothesis import strategies as st

import penstock as pen
from penstock.core.settings import CompactionSettings
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import CrashError, Fault, FaultMode, LocalJob, assert_job_is_whole

Life: TypeAlias = tuple[int, int | None, tuple[FaultMode, int] | None]
"""How many subtasks, the epochs until it is stopped, and at which storage call it dies."""
_DEATHS = [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER]
LIVES: st.SearchStrategy[list[Life]] = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.none() | st.integers(1, 4),
        st.none() | st.tuples(st.sampled_from(_DEATHS), st.integers(1, 60)),
    ),
    max_size=4,
)


def a_job_of(pipeline: pen.Pipeline, rows_per_epoch: int, **options: Any) -> LocalJob:
    """Return a job with epochs of so many rows, whose state is merged as often as possible."""
    return LocalJob(
        pipeline,
        **options,
        settings=DriverSettings(
            budget=SourceBudget(rows=rows_per_epoch),
            adapts_budget=False,
            compaction=CompactionSettings(min_files=2, min_expiring_files=2, max_runs=3),
        ),
    )


def live(job: LocalJob, lives: Sequence[Life], **options: Any) -> None:
    """Run a job through all its lives, then to its end, and check that its state is whole."""
    for parallelism, epochs, fault in lives:
        faults = [] if fault is None else [Fault(fault[0], at=fault[1])]
        try:
            job.run(*faults, parallelism=parallelism, epochs=epochs, **options)
        except CrashError:
            continue
    job.run_until_done(parallelism=2)
    assert_job_is_whole(job.checkpoints)


def after_each_epoch(*sinks: Any) -> Iterator[list[list[dict[str, Any]]]]:
    """Yield for each epoch of a job that is over the rows that each list sink had by then.

    One sink that is written what was read, and one behind a step, tell whether the step was right
    after every epoch, however the job was run.
    """
    written = [sink.rows_by_epoch() for sink in sinks]
    for epoch in sorted({number for epochs in written for number in epochs}):
        yield [
            [row for number, rows in epochs.items() if number <= epoch for row in rows]
            for epochs in written
        ]
