"""Commands about running jobs: `jobs`, `status`, `logs`, `stop` and `compact`."""

import getpass
import platform
import time
from typing import Annotated

import typer

from penstock.cli.terminal import (
    EXIT_NOT_DONE,
    AsJson,
    Job,
    Url,
    Wait,
    say,
    show,
    show_table,
    telling_errors,
    to_url,
)
from penstock.core.clock import SystemClock, to_micros
from penstock.core.figures import show_count, show_instant, show_seconds
from penstock.core.ids import JobId
from penstock.inspect.job_report import JobReport, read_report, report_job, report_jobs
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.journal.events import Event
from penstock.runtime.journal.reading import await_answer, events_since
from penstock.runtime.journal.requests import ask, new_request, withdraw
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.storage.urls import to_store


def jobs(
    url: Annotated[str, typer.Argument(help="Where jobs keep their checkpoints.")],
    as_json: AsJson = False,
) -> None:
    """List the jobs below a URL, and how they are.

    Example: penstock jobs s3://bucket/checkpoints
    """
    with telling_errors():
        found = report_jobs(url)
        if as_json:
            show(found, as_json=True)
            return
        rows = [_row_of(report) for report in found]
        show_table(_TITLES, rows, empty=f"there are no jobs in {url}")


_LOOK_MICROS = 2_000_000
"""How often it is looked whether the job still runs."""
_TITLES = ("job", "health", "epoch", "last sign", "problem")


def _row_of(report: JobReport) -> tuple[str, ...]:
    age = show_seconds(max(0, report.seen_at_micros - report.last_sign_micros))
    epoch = "" if report.epoch is None else str(report.epoch)
    problem = next(iter(report.problems), "")
    return report.job, str(report.health), epoch, f"{age} ago", problem


def status(job: Job, url: Url = None, as_json: AsJson = False) -> None:
    """Say how a job is, what holds its watermark back, and why it is not well.

    Example: penstock status shop -c s3://bucket/checkpoints
    """
    with telling_errors():
        show(report_job(to_url(url), job), as_json=as_json)


def logs(
    job: Job,
    url: Url = None,
    since: Annotated[str, typer.Option(help="How far back, such as 30m or 1d.")] = "1h",
    as_json: AsJson = False,
) -> None:
    """Show what happened to a job: changes of its state, failures, answers to requests.

    Example: penstock logs shop -c checkpoints --since 2h
    """
    with telling_errors():
        store, now = to_store(to_url(url)), SystemClock().now_micros()
        read_report(
            store, JobId(job), SystemClock()
        )  # a job that does not exist is an error
        found = events_since(store, JobId(job), now - to_micros(since, "since"))
        if as_json:
            show(found, as_json=True)
            return
        for event in found:
            for line in _lines_of(event):
                typer.echo(line)
        if not found:
            say(f"nothing happened to job {job!r} in the last {since}")


def _lines_of(event: Event) -> list[str]:
    at = show_instant(event.at_micros)
    epochs, status = event.epochs, event.status
    head = f"{at}  {status.phase}"
    if epochs.count:
        mean = show_seconds(epochs.duration_micros // epochs.count)
        head += f"  epoch {status.epoch}, {epochs.count} epochs of {mean}, {epochs.rows_read:,} rows"
    lines = [head]
    lines += [f"{at}    {answer.action}: {answer.message}" for answer in event.answers]
    for failure in event.failures:
        if failure.last_at_micros >= event.since_micros:
            first = next(iter(failure.message.splitlines()), "")
            lines.append(
                f"{at}    {failure.error}, {show_count(failure.count, 'time')}: {first}"
            )
    return lines


def request(
    job: str,
    url: str | None,
    action: str,
    *,
    wait: str,
    mode: str = "checkpoint",
    name: str | None = None,
) -> None:
    """Ask a job for something, and wait for the answer."""
    with telling_errors():
        store, clock, of = to_store(to_url(url)), SystemClock(), JobId(job)
        read_report(store, of, clock)
        now = clock.now_micros()
        asked = new_request(
            action,
            now_micros=now,
            mode=mode,
            name=name,
            asked_by=f"{getpass.getuser()} on {platform.node()}",
        )
        ask(store, of, asked)
        until, answer, runs = now + to_micros(wait, "wait"), None, True
        while answer is None and runs and clock.now_micros() < until:
            # It is looked before the answer: a driver answers, then leaves.
            runs = JobCheckpoints(store, of).running() is not None
            soon = min(until, clock.now_micros() + _LOOK_MICROS) if runs else 0
            answer = await_answer(
                store, of, asked, clock, until_micros=soon, sleep=time.sleep
            )
        if answer is None:
            withdraw(store, of, asked.id)
            why = f"no driver of job {job!r} has answered within {wait}"
            if not runs:
                why = f"job {job!r} does not run"
            say(f"{why}, so the request was withdrawn: see `penstock status {job}`")
            raise typer.Exit(0 if action == "stop" and not runs else EXIT_NOT_DONE)
        typer.echo(answer.message)
        if not answer.is_done:
            raise typer.Exit(EXIT_NOT_DONE)


def stop(
    job: Job,
    url: Url = None,
    mode: Annotated[StopMode, typer.Option(help="How to stop.")] = StopMode.CHECKPOINT,
    wait: Wait = "2m",
) -> None:
    """Stop a running job, from any machine, and wait until it has stopped.

    Example: penstock stop shop -c s3://bucket/checkpoints
    """
    request(job, url, "stop", mode=mode, wait=wait)


def compact(job: Job, url: Url = None, wait: Wait = "10m") -> None:
    """Have a running job merge the files of its state as far as possible.

    Example: penstock compact shop -c s3://bucket/checkpoints
    """
    request(job, url, "compact", wait=wait)
