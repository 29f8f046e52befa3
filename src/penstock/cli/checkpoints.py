"""Commands about epochs: `checkpoints`, `savepoint`, `branch`, `restore` and `gc`.

Looking is safe beside a job that runs, and so are savepoints, branches and collections. A restore
claims the job, and is refused while it runs.
"""

from typing import Annotated

import typer

from penstock.api.checkpoints import Checkpoints
from penstock.api.checkpoints import checkpoints as open_checkpoints
from penstock.api.epoch_list import Savepoint, StoredEpoch, shown_bytes
from penstock.cli.terminal import (
    AsJson,
    EpochArgument,
    EpochOption,
    Job,
    Url,
    confirm,
    say,
    show,
    show_table,
    telling_errors,
    to_epoch,
    to_url,
)
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.inspect.verifying import verify_job

checkpoints_app = typer.Typer(no_args_is_help=True, help="Look at the epochs of a job.")
savepoint_app = typer.Typer(no_args_is_help=True, help="Keep epochs under names.")


def _open(job: str, url: str | None) -> Checkpoints:
    return open_checkpoints(to_url(url), job)


@checkpoints_app.command("list")
def list_epochs(job: Job, url: Url = None, as_json: AsJson = False) -> None:
    """List the epochs of a job that can be restored, the newest first.

    Example: penstock checkpoints list shop -c s3://bucket/checkpoints
    """
    with telling_errors():
        found = _open(job, url).list()
        show(list(found), as_json=as_json, text=lambda: repr(found))


@checkpoints_app.command("show")
def show_epoch(
    job: Job, epoch: EpochArgument, url: Url = None, as_json: AsJson = False
) -> None:
    """Show the tables of one epoch, and the commands that go back to it.

    Example: penstock checkpoints show shop 12 -c checkpoints
    """
    with telling_errors():
        found = _find_epoch(_open(job, url), job, epoch)
        if as_json:
            show(found, as_json=True)
            return
        typer.echo(f"epoch {found.epoch}, made at {found.made_at:%Y-%m-%d %H:%M:%S} UTC")
        rows = [
            (
                table.step,
                table.table,
                table.kind,
                str(table.row_count),
                shown_bytes(table.size_bytes),
                str(table.file_count),
            )
            for table in found.tables
        ]
        show_table(
            ("step", "table", "kind", "rows in files", "size", "files"),
            rows,
            empty="it holds no state",
        )
        place = to_url(url)
        say(f"to go back to it:   penstock restore {job} {found.epoch} -c {place}")
        say(f"to try something:   penstock branch {job} NAME -e {found.epoch} -c {place}")


@checkpoints_app.command("verify")
def verify(job: Job, url: Url = None, as_json: AsJson = False) -> None:
    """Read every byte that the kept epochs need, and check it.

    The exit code is 8 if anything is damaged.

    Example: penstock checkpoints verify shop
    """
    with telling_errors():
        found = verify_job(to_url(url), job)
        show(found, as_json=as_json)
        if not found.is_whole:
            raise typer.Exit(CorruptStateError.exit_code)


def _find_epoch(checkpoints: Checkpoints, job: str, epoch: str) -> StoredEpoch:
    for found in checkpoints.list():
        if epoch in {str(found.epoch), *(each.name for each in found.savepoints)}:
            return found
    raise StateError(
        f"job {job!r} has no epoch {epoch!r} any more; `penstock checkpoints list {job}` shows "
        "those that are kept",
        code=ErrorCode.NOT_RESTORABLE,
        job=job,
    )


@savepoint_app.command("create")
def create_savepoint(
    job: Job, name: str, epoch: EpochOption = None, url: Url = None
) -> None:
    """Keep an epoch under a name until the savepoint is deleted.

    Example: penstock savepoint create shop before-deploy
    """
    with telling_errors():
        made = _open(job, url).pin(name, to_epoch(epoch))
        typer.echo(f"epoch {made.epoch} is kept as {made.name!r}")


@savepoint_app.command("list")
def list_savepoints(job: Job, url: Url = None, as_json: AsJson = False) -> None:
    """List the names under which epochs are kept, with those of branches and restores.

    Example: penstock savepoint list shop
    """
    with telling_errors():
        found = _open(job, url).savepoints()
        if as_json:
            show(found, as_json=True)
            return
        show_table(
            ("name", "epoch", "kind", "made at", "branch"),
            [_row_of(each) for each in found],
            empty=f"job {job!r} has no savepoints",
        )


def _row_of(savepoint: Savepoint) -> tuple[str, ...]:
    made_at = f"{savepoint.made_at:%Y-%m-%d %H:%M:%S}"
    return (
        savepoint.name,
        str(savepoint.epoch),
        savepoint.kind,
        made_at,
        savepoint.holder or "",
    )


@savepoint_app.command("delete")
def delete_savepoint(
    job: Job,
    name: str,
    url: Url = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also if a branch or a restore needs it.")
    ] = False,
) -> None:
    """Delete a savepoint: the next collection deletes what only it kept.

    Example: penstock savepoint delete shop before-deploy
    """
    with telling_errors():
        if force:
            confirm(job, f"what needs savepoint {name!r} of job {job!r} loses its state")
        _open(job, url).unpin(name, force=force)
        typer.echo(f"savepoint {name!r} is deleted")


def branch(
    job: Job,
    name: Annotated[str, typer.Argument(help="The name of the new job.")],
    epoch: EpochOption = None,
    url: Url = None,
) -> None:
    """Make another job that begins with an epoch of this one, and copies nothing.

    Example: penstock branch shop shop-trial -e 12
    """
    with telling_errors():
        _open(job, url).branch(name, to_epoch(epoch))
        typer.echo(
            f"job {name!r} begins where {job!r} was: run a pipeline of that name on the same "
            "checkpoint URL, with outputs of its own"
        )


def restore(
    job: Job,
    epoch: EpochArgument,
    url: Url = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also if a driver may still run: it would stop.")
    ] = False,
) -> None:
    """Have the next start of a stopped job go on from an epoch.

    Example: penstock restore shop before-deploy
    """
    with telling_errors():
        if force:
            confirm(job, f"a driver of job {job!r} that still runs stops for good")
        wanted = to_epoch(epoch)
        assert wanted is not None  # noqa: S101 (the argument is required)
        typer.echo(str(_open(job, url).restore(wanted, force=force)))


def gc(
    job: Job,
    url: Url = None,
    keep: Annotated[
        str | None,
        typer.Option(help="How many epochs stay, or those since when: 20, 7d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which epochs would go.")
    ] = False,
) -> None:
    """Give up epochs that need not be kept, and delete what only they needed.

    The newest epoch, savepoints and what branches need always stay.

    Example: penstock gc shop --keep 20 --dry-run
    """
    with telling_errors():
        opened, rule = _open(job, url), to_epoch(keep)
        if dry_run:
            going = opened.list_collectable(rule)
            typer.echo(
                f"epochs that would be given up: {', '.join(map(str, going)) or 'none'}"
            )
            return
        typer.echo(str(opened.collect(rule)))
