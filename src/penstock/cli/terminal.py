"""What commands take and print: arguments that many have, values as text or JSON, errors, questions.

Data goes to standard output and everything else to standard error, so that a pipe gets data only.
Colour is left out where the output is no terminal, or `NO_COLOR` is set. Errors become messages
and exit codes.

The checkpoint URL is the option `--checkpoint`, else the setting `checkpoint`: of the environment,
as `PENSTOCK_CHECKPOINT`, or of `penstock.toml`.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.console import describe_error, exit_code
from penstock.core.settings import current
from penstock.errors import ErrorCode, PenstockError, UserError

EXIT_NOT_DONE = 20
"""The exit code of a request that was not honoured, or of a question whose answer is no."""
EXIT_LOSSY = 21
"""The exit code of a plan by which state is lost."""

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "-c",
        help="Where the job keeps its checkpoints: a folder, s3://…, gs://… or az://…",
        show_default="the setting `checkpoint`",
    ),
]
Job: TypeAlias = Annotated[str, typer.Argument(help="The name of the job.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
EpochArgument: TypeAlias = Annotated[
    str, typer.Argument(help="The number of an epoch, or the name of a savepoint.")
]
EpochOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--epoch",
        "-e",
        help="The number of an epoch, or the name of a savepoint.",
        show_default="the newest that is committed",
    ),
]
Wait: TypeAlias = Annotated[
    str, typer.Option("--wait", help="How long to wait for the answer.")
]


def to_url(given: str | None) -> str:
    """Return the checkpoint URL that a command is about."""
    url = given or current().checkpoint
    if not url:
        raise UserError(
            "it is not said where the checkpoints are: give --checkpoint URL, or set "
            'PENSTOCK_CHECKPOINT, or write checkpoint = "URL" into penstock.toml',
            code=ErrorCode.INVALID_CONFIG,
        )
    return url


def to_epoch(given: str | None) -> int | str | None:
    """Return an epoch as `pen.checkpoints` takes it: a number, or the name of a savepoint.

    >>> to_epoch("12"), to_epoch("before-deploy"), to_epoch(None)
    (12, 'before-deploy', None)
    """
    return (
        int(given) if given is not None and given.isascii() and given.isdigit() else given
    )


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses as objects, instants as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(name): to_plain(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_plain(part) for part in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def show(value: Any, *, as_json: bool, text: Callable[[], str] | None = None) -> None:
    """Print a value: its JSON, or its text."""
    if as_json:
        encoded = msgspec.json.encode(to_plain(value), enc_hook=str)
        typer.echo(msgspec.json.format(encoded, indent=2).decode())
        return
    typer.echo(str(value) if text is None else text())


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Print rows in columns; `empty` is said on standard error if there are none."""
    if not rows:
        say(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not console.is_terminal:
        console.width = 10_000  # a pipe has no width: rows stay whole
    console.print(table)


def say(text: str) -> None:
    """Tell the person something that is no data."""
    typer.echo(text, err=True)


def confirm(expected: str, consequence: str) -> None:
    """Have the person type a name before something that cannot be undone; else stop.

    Without a terminal there is nobody to ask, and the option alone counts.
    """
    if not sys.stdin.isatty():
        return
    say(f"{consequence}. There is no way back.")
    if typer.prompt(f"Type {expected!r} to go on", err=True) != expected:
        say("nothing was changed")
        raise typer.Exit(EXIT_NOT_DONE)


@contextmanager
def telling_errors() -> Iterator[None]:
    """Turn an error of Penstock into its message and exit code."""
    try:
        yield
    except PenstockError as error:
        say(describe_error(error))
        raise typer.Exit(exit_code(error)) from error
