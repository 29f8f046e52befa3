"""A whole pipeline that commit 328a859 has left half-way goes on, and ends with the same rows."""

import json
import shutil
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.core.settings import CompactionSettings
from penstock.state.files.state_file import StateFile
from penstock.testing import LocalJob
from tests.builders.profile import by_profile
from tests.compat.pipeline_v1_program import (
    LATE_NUMBERS,
    READ,
    SINKS,
    STATE,
    UNANSWERED,
    UNKNOWN,
    Row,
    build,
    final_rows,
)
from tests.compat.write_pipeline_v1_checkpoint import (
    EAGER,
    FOLDER,
    IN_MEMORY,
    RESUMED,
    a_job,
    read_expected,
    run,
    state_files,
)

STOPPED_AT = "2024-01-01T00:22"
"""All rows before this event time, and few behind it, were read when the job was stopped."""
MACHINES = (b"/work", b"/tmp", b"/root", b"/home", b"/Users")
# State is written with whole hashes: with cut ones nobody could find it again.
pytestmark = pytest.mark.usefixtures("whole_hashes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy: the job goes on in it, and its inputs have moved there."""
    return Path(shutil.copytree(FOLDER, tmp_path / "pipeline"))


def the_job(folder: Path, parallelism: int = 2) -> pen.Pipeline:
    return build(
        str(folder / "inputs"),
        folder / "outputs",
        parallelism=parallelism,
        moved_from=f"{IN_MEMORY}/*.jsonl",
        goes_on=True,
    )


def go_on(
    folder: Path, parallelism: int = 2, compaction: CompactionSettings | None = None
) -> LocalJob:
    job = a_job(
        the_job(folder, parallelism),
        folder / "checkpoint",
        clock_micros=RESUMED,
        compaction=compaction,
    )
    run(job)
    return job


def files_at_stop(folder: Path) -> dict[tuple[str, str], list[StateFile]]:
    return state_files(a_job(the_job(folder), folder / "checkpoint"))


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def check(folder: Path) -> None:
    """Compare all sinks with what is expected; what was committed before is as it was."""
    found, expected = final_rows(folder / "outputs"), read_expected(FOLDER)
    assert found.keys() == expected.keys()
    for sink, rows in expected.items():
        assert found[sink] == rows, sink
    before, after = bytes_below(FOLDER / "outputs"), bytes_below(folder / "outputs")
    assert before.items() <= after.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallelism", by_profile(default=[3], ci=[1, 2, 3], nightly=[1, 2, 3])
)
def test_the_job_goes_on_at_any_parallelism_and_ends_with_the_same_rows(
    folder: Path, parallelism: int
) -> None:
    go_on(folder, parallelism)
    check(folder)


@pytest.mark.slow
def test_the_job_goes_on_as_users_start_it(folder: Path) -> None:
    """All that is left is read in one epoch, and the clock is that of the machine."""
    status = the_job(folder).run_in_process(str(folder / "checkpoint"))
    assert status.phase is pen.JobPhase.FINISHED
    check(folder)


@pytest.mark.slow
def test_the_job_goes_on_with_old_and_new_files_merged(folder: Path) -> None:
    job = go_on(folder, compaction=EAGER)
    check(folder)
    files = state_files(job)["reminders", "totals"]
    assert files
    assert all(file.replaces for file in files)


@pytest.mark.slow
def test_the_last_commit_is_repeated_where_its_marker_is_missing(folder: Path) -> None:
    marker = max((folder / "checkpoint").rglob("committed"))
    assert marker.parent.name == "0000000007"
    marker.unlink()
    job = go_on(folder)
    check(folder)
    created = [call.path for call in job.calls if call.operation == "create"]
    assert str(marker.relative_to(folder / "checkpoint")) in created


@pytest.mark.slow
def test_a_run_that_nobody_stops_gives_the_same_rows(folder: Path, tmp_path: Path) -> None:
    pipeline = build(str(folder / "inputs"), tmp_path / "outputs")
    run(a_job(pipeline, tmp_path / "checkpoint"))
    assert final_rows(tmp_path / "outputs") == read_expected(FOLDER)


def test_every_table_holds_state_some_of_it_merged(folder: Path) -> None:
    files = files_at_stop(folder)
    assert all(sum(file.row_count for file in files[table]) for table in STATE), files
    assert any(file.replaces for table in STATE for file in files[table])


def test_something_of_every_kind_was_open_at_the_stop(folder: Path) -> None:
    committed, expected = final_rows(folder / "outputs"), read_expected(folder)
    for sink in ("hot-out", "busy-out", "visits-out"):
        assert committed[sink], sink
        rest = [row for row in expected[sink] if row not in committed[sink]]
        assert any(row["window_start"] < STOPPED_AT for row in rest), sink
    assert [row["user"] for row in committed["spent-expired"]] == ["back", "early"]
    assert {"back", "middle"} <= {row["user"] for row in committed["spent-out"]}
    reminders = [row for row in expected["reminders-out"] if row["kind"] == "reminder"]
    open_numbers = {
        row["count"] for row in reminders if row not in committed["reminders-out"]
    }
    assert open_numbers & READ
    assert {row["count"] for row in reminders} - open_numbers
    done = [row["number"] for sink in SINKS[:2] for row in committed[sink]]
    kept = READ - {*done}
    assert kept > {*UNANSWERED}, "some have an answer and wait for their turn"
    assert 125 in kept, "and one has failed and waits for its turn"
    assert 125 % UNKNOWN == 0
    assert not committed["late"]


def test_no_path_of_a_machine_is_in_it_and_it_is_small() -> None:
    found = bytes_below(FOLDER)
    assert sum(map(len, found.values())) < 600_000
    for path, data in found.items():
        assert not [machine for machine in MACHINES if machine in data], path


# ---- what is expected, computed anew from the inputs


def inputs() -> list[Row]:
    """The rows in the form of the expected ones, those that are late left out."""
    texts = [path.read_text(encoding="utf-8") for path in (FOLDER / "inputs").iterdir()]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert len(rows) == 243
    return [
        {**row, "at": datetime.fromisoformat(row["at"])}
        for row in rows
        if row["number"] not in LATE_NUMBERS
    ]


def counted(sink: str, *columns: str) -> Counter[tuple[Any, ...]]:
    """How many rows the sink's windows have, by some of its columns and their start."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in read_expected(FOLDER)[sink]:
        start = datetime.fromisoformat(row["window_start"])
        found[(*(row[column] for column in columns), start)] += row["n"]
    return found


def floor(at: datetime, minutes: int) -> datetime:
    return at - (at - datetime(2024, 1, 1)) % timedelta(minutes=minutes)  # noqa: DTZ001


def test_the_expected_windows_are_those_of_the_inputs() -> None:
    rows = inputs()
    answered = [row for row in rows if row["number"] % UNKNOWN]
    assert counted("hot-out", "shop") == Counter(
        (row["shop"], floor(row["at"], 5)) for row in answered
    )
    assert counted("busy-out", "user") == Counter(
        (row["user"], floor(row["at"], 2) - timedelta(minutes=2 * step))
        for row in rows
        for step in range(5)
    )
    sessions: Counter[tuple[Any, ...]] = Counter()
    latest: dict[tuple[str, str], tuple[datetime, datetime]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        key = row["user"], row["shop"]
        start, end = latest.get(key, (row["at"], row["at"]))
        if row["at"] - end >= timedelta(minutes=3):
            start = row["at"]
        latest[key] = start, row["at"]
        sessions[*key, start] += 1
    assert counted("visits-out", "user", "shop") == sessions


def test_the_expected_totals_are_those_of_the_inputs() -> None:
    expected = read_expected(FOLDER)
    late = [row for row in expected["late"] if row["number"] in LATE_NUMBERS]
    assert len(late) == len(expected["late"]) == len(LATE_NUMBERS)
    rows = [*inputs(), *late]
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["user"]] += row["price"]
    of_kind: dict[str, dict[str, int]] = {"total": {}, "seen": {}}
    for row in expected["reminders-out"]:
        if row["kind"] in of_kind:
            of_kind[row["kind"]][row["user"]] = row["count"]
    assert of_kind == {"total": totals, "seen": Counter(row["user"] for row in rows)}
    spent: Counter[str] = Counter()
    for row in [*expected["spent-out"], *expected["spent-expired"]]:
        spent[row["user"]] += row["total"]
    assert spent == totals
    reminded = [
        row["count"] for row in expected["reminders-out"] if row["kind"] == "reminder"
    ]
    assert sorted(reminded) == sorted(r["number"] for r in rows if r["number"] % 3 == 0)
    asked = [row["number"] for sink in SINKS[:2] for row in expected[sink]]
    assert sorted(asked) == sorted(row["number"] for row in rows)


@pytest.mark.slow
def test_aggregates_of_unknown_meaning_are_accepted_warned_about_once_and_recorded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for _ in range(2):
        caplog.clear()
        job = a_job(the_job(folder), folder / "checkpoint", clock_micros=RESUMED)
        run(job, epochs=2)
        texts = [record.getMessage() for record in caplog.records]
        said.append([text for text in texts if "is taken to be" in text])
    first, second = said
    assert len(first) == 4 + 3 + 3 + 4  # hot, busy, visits and spent, which has a ttl
    assert any(
        "'hot': aggregate 'total' is taken to be sum(price)" in text for text in first
    )
    assert second == []
