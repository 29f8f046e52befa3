"""The commands about running jobs: what they print, their exit codes, and that they wait."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import penstock as pen
from penstock.cli.app import app
from penstock.cli.terminal import EXIT_NOT_DONE
from penstock.core.clock import SystemClock
from penstock.core.ids import JobId
from penstock.runtime.journal.reading import find_answer
from penstock.runtime.journal.requests import ask, new_request
from penstock.state.storage.urls import to_store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def url(tmp_path: Path) -> str:
    pipeline = pen.Pipeline("numbers")
    pipeline.read("in", pen.impulse(count=100)).write("out", pen.blackhole())
    pipeline.run_in_process(str(tmp_path))
    return str(tmp_path)


def test_jobs_are_listed_as_a_table_and_as_json(url: str) -> None:
    shown, as_json = run("jobs", url), run("jobs", url, "--json")
    assert shown.exit_code == as_json.exit_code == 0
    assert "numbers" in shown.stdout
    assert "finished" in shown.stdout
    (job,) = json.loads(as_json.stdout)
    assert (job["job"], job["health"], job["problems"]) == ("numbers", "finished", [])


def test_a_place_without_jobs_says_so_on_standard_error(tmp_path: Path) -> None:
    result = run("jobs", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no jobs" in result.stderr


def test_the_status_of_a_job_is_text_or_json(url: str) -> None:
    assert "job numbers: finished" in run("status", "numbers", "-c", url).stdout
    found = json.loads(run("status", "numbers", "-c", url, "--json").stdout)
    assert found["event"]["status"]["rows_read"] == 100


def test_logs_tell_what_happened(url: str) -> None:
    shown = run("logs", "numbers", "-c", url)
    assert "finished" in shown.stdout
    events = json.loads(run("logs", "numbers", "-c", url, "--json").stdout)
    assert events[-1]["status"]["phase"] == "finished"


@pytest.mark.parametrize("command", ["status", "logs", "stop", "compact"])
def test_a_job_that_does_not_exist_is_a_message_and_exit_code_9(
    url: str, command: str
) -> None:
    result = run(command, "nobody", "-c", url)
    assert result.exit_code == 9
    assert result.stdout == ""
    assert "no job 'nobody'" in result.stderr


def test_a_duration_that_is_none_is_a_message_and_exit_code_2(url: str) -> None:
    result = run("logs", "numbers", "-c", url, "--since", "yesterday")
    assert result.exit_code == 2
    assert "yesterday" in result.stderr


def test_a_job_is_stopped_and_the_command_waits_for_it(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("endless")
    pipeline.read("in", pen.impulse(rate=500)).write("out", pen.blackhole())
    with pipeline.start_in_process(str(tmp_path)) as job:
        result = run("stop", "endless", "-c", str(tmp_path))
        assert result.exit_code == 0, result.output
        assert "has stopped" in result.stdout
        assert job.wait("5s").phase is pen.JobPhase.STOPPED


def test_a_request_that_nobody_answers_is_withdrawn(url: str) -> None:
    result = run("compact", "numbers", "-c", url, "--wait", "1s")
    assert result.exit_code == EXIT_NOT_DONE
    assert "does not run" in result.stderr
    assert run("stop", "numbers", "-c", url).exit_code == 0
    assert not list(Path(url).rglob("requests/*"))


def test_compacting_is_answered_while_the_job_runs(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("endless")
    pipeline.read("in", pen.impulse(rate=500)).write("out", pen.blackhole())
    with pipeline.start_in_process(str(tmp_path)) as job:
        result = run("compact", "endless", "-c", str(tmp_path))
        assert result.exit_code == 0, result.output
        assert job.is_running


def test_every_command_has_an_example_in_its_help() -> None:
    for command in ("jobs", "status", "logs", "stop", "compact", "version"):
        assert "Example: penstock" in run(command, "--help").stdout


def test_the_versions_are_shown_in_both_ways() -> None:
    assert run("version").stdout == run("--version").stdout
    assert "penstock" in run("version").stdout


def test_a_pipe_gets_no_colour_and_whole_lines(url: str) -> None:
    shown = run("jobs", url).stdout
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2


def test_requests_of_two_people_are_both_answered(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("endless")
    pipeline.read("in", pen.impulse(rate=500)).write("out", pen.blackhole())
    store, job = to_store(str(tmp_path)), JobId("endless")
    other = new_request("stop", now_micros=SystemClock().now_micros())
    with pipeline.start_in_process(str(tmp_path)):
        ask(store, job, other)
        assert run("stop", "endless", "-c", str(tmp_path)).exit_code == 0
    answer = find_answer(store, job, other.id, since_micros=other.created_at_micros)
    assert answer is not None
    assert answer.is_done
