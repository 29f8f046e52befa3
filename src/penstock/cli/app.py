"""The program `penstock`: its commands, and their place in the help."""

from typing import Annotated

import typer

from penstock.cli import checkpoints, jobs, new_project, running, state
from penstock.core.versions import describe_versions

app = typer.Typer(
    name="penstock",
    help="Stateful stream processing in Python, on Spark: look at jobs, and operate them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(describe_versions())
        raise typer.Exit


@app.callback()
def penstock(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show versions."
        ),
    ] = False,
) -> None:
    """Look at jobs, and operate them."""


@app.command()
def version() -> None:
    """Show the versions of Penstock and of what it runs on.

    Example: penstock version
    """
    typer.echo(describe_versions())


_PROGRAMS = "Programs"
app.command(rich_help_panel=_PROGRAMS)(new_project.init)
app.command(rich_help_panel=_PROGRAMS)(running.run)
app.command(rich_help_panel=_PROGRAMS)(running.plan)
app.command(rich_help_panel=_PROGRAMS)(running.graph)
app.command(rich_help_panel=_PROGRAMS)(running.doctor)

_RUNNING = "Running jobs"
app.command(rich_help_panel=_RUNNING)(jobs.jobs)
app.command(rich_help_panel=_RUNNING)(jobs.status)
app.command(rich_help_panel=_RUNNING)(jobs.logs)
app.command(rich_help_panel=_RUNNING)(jobs.stop)
app.command(rich_help_panel=_RUNNING)(jobs.compact)

_EPOCHS = "Epochs"
app.add_typer(checkpoints.checkpoints_app, name="checkpoints", rich_help_panel=_EPOCHS)
app.add_typer(checkpoints.savepoint_app, name="savepoint", rich_help_panel=_EPOCHS)
app.command(rich_help_panel=_EPOCHS)(checkpoints.branch)
app.command(rich_help_panel=_EPOCHS)(checkpoints.restore)
app.command(rich_help_panel=_EPOCHS)(checkpoints.gc)

app.add_typer(state.state_app, name="state", rich_help_panel="State")
