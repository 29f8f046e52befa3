"""Arguments and options that many commands have: the job, where its checkpoints are, JSON.

The checkpoint URL is the option `--checkpoint`, else the setting `checkpoint`: of the environment,
as `PENSTOCK_CHECKPOINT`, or of `penstock.toml`.
"""

from typing import Annotated, TypeAlias

import typer

from penstock.core.settings import current
from penstock.errors import ErrorCode, UserError

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
