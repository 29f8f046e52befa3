"""A step that gets another name keeps its state, if the start is told so."""

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.core.ids import Epoch, JobId
from penstock.errors import PenstockError, StateError, UserCodeError, UserError
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    CUT,
    STORAGE_FAULTS,
    CrashError,
    LocalJob,
    ScriptedSource,
    assert_job_is_whole,
    assert_nothing_was_changed,
    stored_objects,
)
from tests.builders.profile import a_start, by_profile
from tests.builders.scripted import PLAIN, link
from tests.unit.runtime.test_commits import Target, a_job

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAYS = [
    [{"user": "ada", "at": START, "paid": 7}, {"user": "bob", "at": START, "paid": 5}],
    [{"user": "ada", "at": START + dt.timedelta(seconds=30), "paid": 1}],
    [{"user": "bob", "at": START + dt.timedelta(hours=1), "paid": 2}],
]


def shop(
    step: str = "spent", *, source: str = "sales", window: str = "hours", out: Any = None
) -> pen.Pipeline:
    pipeline = pen.Pipeline("shop")
    script = [step for day in DAYS for step in (day, CUT)]
    sales = pipeline.read(
        source, ScriptedSource(script), event_time="at", watermark_delay="1s"
    )
    keyed = sales.key_by("user")
    keyed.aggregate(step, total=pen.sum("paid")).write("out", pen.blackhole())
    hours = keyed.window(window, pen.tumbling("1h"))
    hours.aggregate(total=pen.sum("paid")).write("per-hour", out or pen.blackhole())
    return pipeline


def stopped(out: Any = None) -> LocalJob:
    job = LocalJob(shop(out=out))
    job.run(epochs=2)
    return job


def again(
    job: LocalJob, renamed: dict[str, str], *faults: Any, **pipeline: Any
) -> LocalJob:
    settings = DriverSettings(renamed=renamed)
    other = LocalJob(shop(**pipeline), store=job.store, clock=job.clock, settings=settings)
    other.run(*faults)
    return other


def spent(job: LocalJob, step: str) -> dict[str, int]:
    table = pen.checkpoints(job.store, "shop").read(step, "partials")
    [total] = [name for name in table.column_names if name.startswith("total")][:1]
    return {row["user"]: row[total] for row in table.to_pylist()}


def hours(out: Any) -> list[tuple[str, int]]:
    return sorted((row["user"], row["total"]) for row in out.rows())


ALL = {"spent": "paid", "sales": "orders", "hours": "by-hour"}
NEW = {"step": "paid", "source": "orders", "window": "by-hour"}


def test_state_goes_on_under_the_new_names_of_aggregates_windows_and_sources() -> None:
    out = pen.list_sink("renamed-steps")
    job = stopped(out)
    again(job, ALL, out=out, **NEW)
    assert spent(job, "paid") == {"ada": 8, "bob": 7}
    assert hours(out) == [("ada", 8), ("bob", 2), ("bob", 5)]
    assert_job_is_whole(job.checkpoints)


def test_without_it_the_start_is_refused_and_tells_how_to_say_it() -> None:
    job = stopped()
    before = stored_objects(job.store)
    with pytest.raises(
        StateError, match=r'pass renamed=\{.spent.: "…"\} if it has another'
    ):
        shop("paid").run_in_process(job.store)
    assert_nothing_was_changed(before, job.store)
    status = shop("paid").run_in_process(job.store, renamed={"spent": "paid"})
    assert status.phase is pen.JobPhase.FINISHED
    assert spent(job, "paid") == {"ada": 8, "bob": 7}


def test_it_may_stay_in_the_program() -> None:
    job = stopped()
    other = LocalJob(
        shop(**NEW),
        store=job.store,
        clock=job.clock,
        settings=DriverSettings(renamed=ALL),
    )
    other.run(epochs=1)
    other.run()
    other.run()
    assert spent(job, "paid") == {"ada": 8, "bob": 7}
    manifests = [job.checkpoints.manifest(e.record.ref) for e in job.checkpoints.epochs()]
    assert len({each.processing_time_micros for each in manifests}) == len(manifests) - 1


def test_a_check_shows_what_goes_on_under_another_name() -> None:
    job = stopped()
    before = stored_objects(job.store)
    check = shop("paid").check(job.store, renamed={"spent": "paid"})
    assert check.is_possible
    [state] = [state for state in check.states if state.step == "paid"]
    assert state.fate.value == "kept"
    assert state.detail.endswith("of step 'spent'")
    assert_nothing_was_changed(before, job.store)


@pytest.mark.parametrize(
    ("renamed", "problem"),
    [
        ({"spent": "typo"}, "which the pipeline does not have"),
        ({"spent": "sales"}, "and the pipeline has both"),
        ({"a": "x", "b": "x"}, "does not say how steps were renamed"),
        (["spent"], "does not say how steps were renamed"),
    ],
)
def test_names_that_cannot_be_meant_are_refused(renamed: Any, problem: str) -> None:
    job = stopped()
    before = stored_objects(job.store)
    with pytest.raises(UserError, match=problem):
        shop().run_in_process(job.store, renamed=renamed)
    assert_nothing_was_changed(before, job.store)


def test_a_restore_at_the_same_time_is_refused_and_the_advice_helps() -> None:
    job = stopped()
    with pytest.raises(UserError, match=r"cannot go back to epoch 1 .* at once"):
        shop("paid").run_in_process(job.store, restore=1, renamed={"spent": "paid"})
    job.run(epochs=1, restore=pen_epochs(1))
    shop("paid").run_in_process(job.store, renamed={"spent": "paid"})
    assert spent(job, "paid") == {"ada": 8, "bob": 7}


def pen_epochs(number: int) -> Any:
    return Epochs(Epoch(number))


def test_an_open_commit_of_a_sink_that_was_renamed_is_made() -> None:
    target = Target()
    target.failures = [ValueError("no")]
    job = a_job(target)
    with pytest.raises(UserCodeError):
        job.run()
    job.settings = DriverSettings(renamed={"write": "store"})
    job.nodes, job.edges = job.nodes[:1], []
    job.add("store", target.sink, PLAIN)
    job.join(link("read", "store"))
    assert job.run().phase is pen.JobPhase.FINISHED
    assert target.committed[1] == {0: b"1-0", 1: b"1-1"}


def test_a_branch_may_have_other_names() -> None:
    job = stopped()
    job.checkpoints.branch(JobId("branch"), pen_epochs(1))
    pipeline = pen.Pipeline("branch")
    script = [step for day in DAYS for step in (day, CUT)]
    sales = pipeline.read("sales", ScriptedSource(script), event_time="at")
    paid = sales.key_by("user").aggregate("paid", total=pen.sum("paid"))
    paid.write("out", pen.blackhole())
    pipeline.run_in_process(job.store, renamed={"spent": "paid"}, allow_dropped_state=True)
    table = pen.checkpoints(job.store, "branch").read("paid", "partials")
    assert table.num_rows == 2
    assert_job_is_whole(JobCheckpoints(job.store, JobId("branch")))


@pytest.mark.slow
@pytest.mark.parametrize("fault", STORAGE_FAULTS, ids=str)
def test_a_fault_at_any_storage_call_leaves_the_job_before_the_rename_or_after_it(
    fault: Any,
) -> None:
    """Renames every step, with a fault at every call of the start, then starts again."""
    made = stopped()
    step = by_profile(default=5, ci=1, nightly=1)
    at, has_failed = a_start(step) + 1 - step, True
    while has_failed and at < 80:
        at += step
        job = LocalJob(
            shop(**NEW),
            store=MemoryStore(stored_objects(made.store)),
            clock=made.clock,
            settings=DriverSettings(renamed=ALL),
        )
        has_failed = False
        try:
            job.run(replace(fault, at=at), epochs=1)
        except (CrashError, PenstockError):
            has_failed = True
        has_failed = has_failed or any(call for call in job.calls[at - 1 :])
        job.run()
        assert spent(job, "paid") == {"ada": 8, "bob": 7}
        assert_job_is_whole(job.checkpoints)


def test_names_of_files_in_the_output_follow(tmp_path: Path) -> None:
    def writing(step: str) -> pen.Pipeline:
        pipeline = pen.Pipeline("files")
        script = [each for n in range(4) for each in ([{"n": n}], CUT)]
        rows = pipeline.read("rows", ScriptedSource(script))
        rows.write(step, pen.files(tmp_path / "out"))
        return pipeline

    store = MemoryStore()
    LocalJob(writing("old"), store=store).run(epochs=2)
    writing("new").run_in_process(store, renamed={"old": "new"})
    found = pen.read_committed(tmp_path / "out").to_pylist()
    assert sorted(row["n"] for row in found) == [0, 1, 2, 3]
    assert {file.operator for file in pen.committed_files(tmp_path / "out")} == {
        "old",
        "new",
    }
