"""The program `penstock`: its commands, and their place in the help."""

from typing import Annotated

import typer

from penstock.cli import jobs
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


_RUNNING = "Running jobs"
for command in (jobs.jobs, jobs.status, jobs.logs, jobs.stop, jobs.compact):
    app.command(rich_help_panel=_RUNNING)(command)
