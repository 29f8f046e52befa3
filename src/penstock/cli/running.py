"""Commands about programs: `run`, `plan`, `graph` and `doctor`.

A job that would not end by itself runs as long as `--until` says:

    idle        no rows came for a few seconds, and the sources have nothing left
    epoch:N     epoch N is committed
    10m         so much time has passed
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import typer

from penstock.cli.programs import load_pipeline
from penstock.cli.terminal import (
    EXIT_LOSSY,
    EXIT_NOT_DONE,
    AsJson,
    Url,
    show,
    telling_errors,
    to_epoch,
    to_url,
)
from penstock.console import Progress
from penstock.core.clock import to_micros
from penstock.core.settings import current
from penstock.errors import ErrorCode, UserError
from penstock.inspect.doctoring import diagnose
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.fitness import Fate, StartCheck
from penstock.runtime.driver.running_job import RunningJob

_LOOK_SECONDS = 0.1
_IDLE_SECONDS = 3.0
"""How long nothing may come before a job counts as idle."""


@dataclass(frozen=True, slots=True)
class Until:
    """When to stop; exactly one of its fields is set."""

    is_idle: bool = False
    epoch: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, text: str) -> "Until":
        """Read what a user wrote.

        >>> Until.of("epoch:12").epoch, Until.of("1m30s").seconds, Until.of("idle").is_idle
        (12, 90.0, True)
        """
        if text == "idle":
            return cls(is_idle=True)
        kind, _, number = text.partition(":")
        if kind == "epoch" and number.isascii() and number.isdigit():
            return cls(epoch=int(number))
        try:
            return cls(seconds=to_micros(text, "time") / 1_000_000)
        except UserError as error:
            raise UserError(
                f"--until {text}: write idle, epoch:N, or a time such as 30s or 10m",
                code=ErrorCode.INVALID_CONFIG,
            ) from error

    def attend(
        self,
        job: RunningJob,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Look at a job until it is time, then ask it to stop; return when it has ended."""
        began = changed = now()
        seen: tuple[int, int] | None = None
        while job.is_running:
            status = job.status
            told = (status.rows_read, status.epochs_published)
            if told != seen:
                seen, changed = told, now()
            if self._is_time(status, now() - began, now() - changed):
                job.stop()
                return
            sleep(_LOOK_SECONDS)

    def _is_time(self, status: JobStatus, elapsed: float, quiet: float) -> bool:
        if self.seconds is not None:
            return elapsed >= self.seconds
        if self.epoch is not None:
            return status.epoch is not None and status.epoch >= self.epoch
        is_waiting = status.phase is JobPhase.WAITING and not status.lag
        return is_waiting and status.epochs_run > 0 and quiet >= _IDLE_SECONDS


Program: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]",
        help="A program with a pipeline, or with a function that returns one.",
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="An argument of the function: key=value. May be repeated."),
]
Restore: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Go back to an epoch, or to a savepoint by name, first."),
]
AllowDropped: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-dropped", help="Go on although state is left behind that nothing uses."
    ),
]


def run(
    program: Program,
    url: Url = None,
    settings: Settings = None,
    master: Annotated[
        str | None, typer.Option(help="The master of another Spark than one in here.")
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run without Spark, in this process.")
    ] = False,
    restore: Restore = None,
    allow_dropped: AllowDropped = False,
    until: Annotated[
        str | None,
        typer.Option(
            help="When to stop: idle, epoch:N, or after a time such as 10m. "
            "Else when the data ends."
        ),
    ] = None,
) -> None:
    """Run a job until its data ends, or as long as --until says.

    Example: penstock run job.py --until idle
    """
    with telling_errors():
        pipeline, place = load_pipeline(program, settings or ()), to_url(url)
        options: dict[str, Any] = {
            "restore": to_epoch(restore),
            "allow_dropped_state": allow_dropped,
            "on_status": Progress(),
        }
        if in_process:
            job = pipeline.start_in_process(place, **options)
        else:
            job = pipeline.start(place, master=master, **options)
        if until is not None:
            Until.of(until).attend(job)
        typer.echo(str(job.wait()))


def plan(
    program: Program,
    url: Url = None,
    settings: Settings = None,
    restore: Restore = None,
    allow_dropped: AllowDropped = False,
    as_json: AsJson = False,
) -> None:
    """Say what the next start of a job would do to its state, without changing anything.

    The exit code is 0 if the job would start and lose nothing, 21 if it would lose state, and
    that of the error if it would be refused.

    Example: penstock plan job.py -c s3://bucket/checkpoints
    """
    with telling_errors():
        check = load_pipeline(program, settings or ()).check(
            to_url(url), restore=to_epoch(restore), allow_dropped_state=allow_dropped
        )
        show(_to_shown(check), as_json=as_json, text=lambda: str(check))
        if check.problems:
            raise typer.Exit(check.problems[0].exit_code)
        if any(state.fate is Fate.DROPPED for state in check.states):
            raise typer.Exit(EXIT_LOSSY)


def _to_shown(check: StartCheck) -> dict[str, Any]:
    return {
        "job": check.job,
        "epoch": check.epoch,
        "is_possible": check.is_possible,
        "states": check.states,
        "problems": [problem.message for problem in check.problems],
        "notes": check.notes,
    }


def doctor(url: Url = None, as_json: AsJson = False) -> None:
    """Look whether a job can run here: Java, Spark, packages, the store, the clock.

    The exit code is 20 if something is missing.

    Example: penstock doctor -c s3://bucket/checkpoints
    """
    with telling_errors():
        found = diagnose(url or current().checkpoint)
        show(found, as_json=as_json)
        if not found.is_well:
            raise typer.Exit(EXIT_NOT_DONE)


class GraphFormat(StrEnum):
    """How `graph` shows a pipeline."""

    TEXT = "text"
    MERMAID = "mermaid"
    JSON = "json"


def graph(
    program: Program,
    settings: Settings = None,
    form: Annotated[
        GraphFormat, typer.Option("--format", help="How to show it.")
    ] = GraphFormat.MERMAID,
) -> None:
    """Show the graph of a pipeline: for Mermaid, as text, or as JSON.

    Example: penstock graph job.py --format text
    """
    with telling_errors():
        typer.echo(str(load_pipeline(program, settings or ()).explain(form.value)))
