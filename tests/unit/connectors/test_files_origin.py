"""Which files a job goes on with: those it began with, wherever they are now."""

from pathlib import Path
from typing import Any

import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.files.connector import files
from penstock.connectors.files.discovery import LISTING, ORIGIN
from penstock.connectors.memory import list_sink
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SourceBudget
from penstock.state.storage.memory import MemoryStore
from penstock.testing import LocalJob
from tests.builders.chain_rig import DrivenSource
from tests.builders.files_job import SCHEMA, some_rows, write_file

SOME = SourceBudget(rows=10)
discovering = pytest.mark.parametrize("discover", [False, True])


def a_job(path: Path | str, **options: Any) -> DrivenSource:
    return DrivenSource(files(str(path), **options).source_spec())


def restart(job: DrivenSource, path: Path | str, **options: Any) -> None:
    """Let a job go on in another process, with what it reads named anew."""
    job.spec = files(str(path), **options).source_spec()


def run_to_end(job: DrivenSource) -> list[int]:
    numbers: list[int] = []
    for _ in range(20):
        numbers += [row["n"] for row in job.run_epoch()]
    return numbers


@discovering
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mon/*.jsonl", "tue/*.jsonl"),
        ("mon/*.jsonl", "*/*.jsonl"),
        ("mon/*.jsonl", "mon/p*.jsonl"),
        ("mon/p.jsonl", "tue/p.jsonl"),
        ("mon", "mon/**"),
    ],
)
def test_other_files_in_place_of_those_that_were_begun_are_refused(
    tmp_path: Path, discover: bool, before: str, after: str
) -> None:
    write_file(tmp_path / "mon" / "p.jsonl", some_rows(0, 30))
    write_file(tmp_path / "tue" / "p.jsonl", some_rows(30, 60))
    options = {"format": "jsonl", "discover": discover}
    job = a_job(tmp_path / before, **options)
    job.run_epoch(SOME)
    restart(job, tmp_path / after, **options)

    with pytest.raises(UserError) as caught:
        job.run_epoch(SOME)

    assert caught.value.code is ErrorCode.INVALID_CONFIG
    message = str(caught.value)
    assert f"begun to read the files {tmp_path.as_uri()}/{before}" in message
    assert f"now names {tmp_path.as_uri()}/{after}" in message
    assert "or start the job anew" in message


@discovering
def test_files_that_have_moved_are_read_on_and_later_by_their_new_path(
    tmp_path: Path, discover: bool
) -> None:
    write_file(tmp_path / "old" / "a.jsonl", some_rows(0, 30))
    job = a_job(tmp_path / "old" / "*.jsonl", discover=discover)
    found = [row["n"] for row in job.run_epoch(SOME)]
    (tmp_path / "old").rename(tmp_path / "new")
    path = tmp_path / "new" / "*.jsonl"

    restart(job, path, discover=discover)
    with pytest.raises(UserError, match=r"pass moved_from='(.*)'") as caught:
        job.run_epoch(SOME)
    advised = str(caught.value).split("moved_from='")[1].split("'")[0]
    restart(job, path, discover=discover, moved_from=advised)
    found += [row["n"] for row in job.run_epoch(SOME)]
    restart(job, path, discover=discover)
    found += run_to_end(job)

    assert len(found) >= 10
    assert found == list(range(30))


def test_moved_from_names_what_was_read_before_and_nothing_else(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        write_file(tmp_path / folder / "p.jsonl", some_rows(0, 30))
    job = a_job(tmp_path / "a" / "*.jsonl")
    job.run_epoch(SOME)
    restart(job, tmp_path / "c" / "*.jsonl", moved_from=f"{tmp_path}/b/*.jsonl")

    with pytest.raises(UserError, match=r"has begun to read the files .*/a/"):
        job.run_epoch(SOME)


def test_files_that_moved_keep_their_paths_below_the_folder(tmp_path: Path) -> None:
    spec = files(
        f"{tmp_path}/data/*/*.csv", schema=SCHEMA, moved_from=f"{tmp_path}/data/2026/*.csv"
    )

    with pytest.raises(UserError, match=r"'\*/\*\.csv' below it, and moved_from names"):
        spec.source_spec()


def test_a_folder_that_a_link_replaced_is_still_the_same(tmp_path: Path) -> None:
    write_file(tmp_path / "old" / "a.jsonl", some_rows(0, 30))
    job = a_job(tmp_path / "old" / "*.jsonl")
    found = [row["n"] for row in job.run_epoch(SOME)]
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "old").symlink_to(tmp_path / "new")

    restart(job, tmp_path / "old" / "*.jsonl")
    found += run_to_end(job)

    assert found == list(range(30))


def test_a_link_that_leads_elsewhere_now_is_refused(tmp_path: Path) -> None:
    for day in ("mon", "tue"):
        write_file(tmp_path / day / "p.jsonl", some_rows(0, 30))
    latest = tmp_path / "latest"
    latest.symlink_to("mon")
    job = a_job(latest / "*.jsonl", discover=True)
    job.run_epoch(SOME)
    latest.unlink()
    latest.symlink_to("tue")
    restart(job, latest / "*.jsonl", discover=True)

    with pytest.raises(UserError, match=r"/mon/\*\.jsonl and now names .*/tue/"):
        job.run_epoch(SOME)


@discovering
def test_older_checkpoints_are_read_on_and_then_know_their_files(
    tmp_path: Path, discover: bool
) -> None:
    write_file(tmp_path / "a" / "p.jsonl", some_rows(0, 30))
    write_file(tmp_path / "b" / "p.jsonl", some_rows(0, 30))
    job = a_job(tmp_path / "a" / "*.jsonl", discover=discover)
    found = [row["n"] for row in job.run_epoch(SOME)]
    del job.known[ORIGIN]

    found += run_to_end(job)

    assert found == list(range(30))
    restart(job, tmp_path / "b" / "*.jsonl", discover=discover)
    with pytest.raises(UserError, match=r"now names .*/b/"):
        job.run_epoch()


def test_the_pattern_that_an_older_checkpoint_has_is_still_compared(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", some_rows(0, 30))
    job = a_job(tmp_path / "*.jsonl")
    job.run_epoch(SOME)
    del job.known[ORIGIN]
    restart(job, tmp_path / "a*.jsonl")

    with pytest.raises(UserError, match=r"/\*\.jsonl and now names .*/a\*\.jsonl"):
        job.run_epoch(SOME)


def test_an_older_job_that_has_ended_plans_nothing_more(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", some_rows(0, 3))
    job = a_job(tmp_path / "*.jsonl")
    run_to_end(job)
    del job.known[ORIGIN]

    job.run_epoch()

    assert job.plan.splits == ()
    assert job.has_ended()


def test_a_path_may_be_corrected_while_nothing_was_read(tmp_path: Path) -> None:
    write_file(tmp_path / "right" / "a.jsonl", some_rows(0, 3))
    options = {"schema": SCHEMA, "discover": True}
    job = a_job(tmp_path / "wrong" / "*.jsonl", **options)
    job.run_epoch()

    restart(job, tmp_path / "right" / "*.jsonl", **options)

    assert run_to_end(job) == [0, 1, 2]


def test_a_list_that_discovery_replaced_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_file(tmp_path / f"{name}.jsonl", some_rows(0, 30))
    job = a_job(tmp_path / "*.jsonl")
    job.run_epoch(SOME)
    assert not job.known[LISTING].ended

    restart(job, tmp_path / "*.jsonl", discover=True)
    job.run_epoch(SOME)

    assert job.known[LISTING].ended


def run_for_an_epoch(store: MemoryStore, path: Path, **options: Any) -> list[int]:
    """Run a job with discovery, in a process of its own; return all that it wrote so far."""
    out = list_sink("files-origin")
    pipeline = Pipeline("job")
    pipeline.read("in", files(str(path), discover=True, **options)).write("out", out)
    LocalJob(pipeline, store=store).run(epochs=1)
    return [row["n"] for row in out.rows()]


def test_a_checkpoint_tells_which_files_were_read(tmp_path: Path) -> None:
    write_file(tmp_path / "mon" / "p.jsonl", some_rows(10, 20))
    write_file(tmp_path / "tue" / "p.jsonl", some_rows(20, 30))
    monday, tuesday = tmp_path / "mon" / "*.jsonl", tmp_path / "tue" / "*.jsonl"
    store = MemoryStore()

    run_for_an_epoch(store, monday)
    with pytest.raises(UserError, match=r"/mon/.* and now names .*/tue/"):
        run_for_an_epoch(store, tuesday)
    (tmp_path / "tue").rename(tmp_path / "wed")
    (tmp_path / "mon").rename(tmp_path / "tue")
    write_file(tmp_path / "tue" / "q.jsonl", some_rows(30, 40))

    run_for_an_epoch(store, tuesday, moved_from=str(monday))
    assert run_for_an_epoch(store, tuesday) == [*range(10, 20), *range(30, 40)]
