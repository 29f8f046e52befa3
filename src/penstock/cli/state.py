"""Commands about state: `state tables`, `show`, `get`, `query`, `diff` and `export`.

A table is named by its step, or by step and table, as in `spent.partials`.
"""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import typer

from penstock.api.epoch_list import shown_bytes
from penstock.cli.terminal import (
    AsJson,
    EpochOption,
    Job,
    Url,
    say,
    show,
    show_table,
    telling_errors,
    to_epoch,
    to_url,
)
from penstock.core.batch import to_rows
from penstock.errors import ErrorCode, UserError
from penstock.inspect.querying import DEFAULT_MEMORY, DEFAULT_SECONDS, query_tables
from penstock.inspect.state import OpenState, StateTable, diff_rows, open_state

state_app = typer.Typer(no_args_is_help=True, help="Look at the state of a job, as data.")

Table: TypeAlias = Annotated[
    str, typer.Argument(metavar="STEP[.TABLE]", help="A step, or a table of it.")
]
_MOST_ROWS = 50


def _open(job: str, url: str | None, epoch: str | None) -> OpenState:
    return open_state(to_url(url), job, to_epoch(epoch))


def _table(state: OpenState, named: str) -> StateTable:
    """Open a table; names of steps and tables may hold dots themselves."""
    for each in state.tables:
        if named == f"{each.step}.{each.table}":
            return state.table(each.step, each.table)
    return state.table(named)


def _print_rows(rows: pa.Table, *, as_json: bool, limit: int | None) -> None:
    shown = rows if limit is None else rows.slice(0, limit)
    if as_json:
        show(to_rows(shown), as_json=True)
        return
    with pl.Config(
        tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, fmt_str_lengths=80
    ):
        typer.echo(str(pl.DataFrame(shown)))
    if shown.num_rows < rows.num_rows:
        say(f"{shown.num_rows} of {rows.num_rows:,} rows; --limit shows more")


@state_app.command("tables")
def tables(
    job: Job, epoch: EpochOption = None, url: Url = None, as_json: AsJson = False
) -> None:
    """List the tables that an epoch holds, and how large they are.

    Example: penstock state tables shop
    """
    with telling_errors(), _open(job, url, epoch) as state:
        if as_json:
            show(state.tables, as_json=True)
            return
        rows = [
            (t.step, t.table, t.kind, f"{t.row_count:,}", shown_bytes(t.size_bytes))
            for t in state.tables
        ]
        show_table(
            ("step", "table", "kind", "rows in files", "size"),
            rows,
            empty=f"epoch {state.epoch} of job {job!r} holds no state",
        )


Limit: TypeAlias = Annotated[int, typer.Option(help="How many rows to show.")]


@state_app.command("show")
def show_rows(
    job: Job,
    table: Table,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Only this one. May be repeated.")
    ] = None,
    limit: Limit = _MOST_ROWS,
    epoch: EpochOption = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table: each key once, none deleted or expired.

    Example: penstock state show shop spent --column user --limit 10
    """
    with telling_errors(), _open(job, url, epoch) as state:
        rows = _table(state, table).arrow(columns or None)
        _print_rows(rows, as_json=as_json, limit=limit)


@state_app.command("get")
def get(
    job: Job,
    table: Table,
    keys: Annotated[
        list[str],
        typer.Argument(
            help="A value of the key for each row; of a key of several columns column=value "
            "for each column."
        ),
    ],
    epoch: EpochOption = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of some keys, without reading the others.

    Example: penstock state get shop spent ada bob
    """
    with telling_errors(), _open(job, url, epoch) as state:
        opened = _table(state, table)
        _print_rows(opened.get(_to_keys(opened, keys)), as_json=as_json, limit=None)


def _to_keys(table: StateTable, given: list[str]) -> pa.Table:
    """Return the keys that a user wrote, as the types of the key columns."""
    fields = table.key_fields
    names = [field.name for field in fields]
    if len(names) == 1 and not all(text.startswith(f"{names[0]}=") for text in given):
        columns = {names[0]: given}
    else:
        pairs = dict(text.partition("=")[::2] for text in given)
        if sorted(pairs) != sorted(names):
            raise UserError(
                f"the key of table {table.name!r} has the columns {', '.join(names)}: give each "
                "as column=value",
                code=ErrorCode.INVALID_CONFIG,
            )
        columns = {name: [pairs[name]] for name in names}
    try:
        arrays: list[Any] = [
            pa.array(columns[field.name]).cast(field.type) for field in fields
        ]
    except pa.ArrowException as error:
        raise UserError(
            f"these values are no keys of table {table.name!r}: {error}",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
    return pa.table(arrays, names=names)


@state_app.command("query")
def query(
    job: Job,
    sql: Annotated[str, typer.Argument(help="A query; tables are named by their steps.")],
    limit: Limit = _MOST_ROWS,
    timeout: Annotated[str, typer.Option(help="How long it may take.")] = DEFAULT_SECONDS,
    memory: Annotated[
        str, typer.Option(help="How much memory it may take.")
    ] = DEFAULT_MEMORY,
    epoch: EpochOption = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Query state by SQL: DuckDB, which reaches nothing but the tables.

    A step with several tables has each as "step.table". Only tables that the text names are read.

    Example: penstock state query shop 'select count(*) from spent'
    """
    with telling_errors(), _open(job, url, epoch) as state:
        named = {f"{t.step}.{t.table}": (t.step, t.table) for t in state.tables}
        own = {
            step: [t for t in state.tables if t.step == step] for step, _ in named.values()
        }
        named |= {
            step: (step, found[0].table) for step, found in own.items() if len(found) == 1
        }
        wanted = {
            name: state.table(*place).arrow()
            for name, place in named.items()
            if name in sql
        }
        found = query_tables(wanted, sql, timeout=timeout, memory=memory)
        _print_rows(found, as_json=as_json, limit=limit)


@state_app.command("diff")
def diff(
    job: Job,
    table: Table,
    before: Annotated[str, typer.Argument(help="An epoch or savepoint.")],
    after: Annotated[str | None, typer.Argument(help="Another; else the newest.")] = None,
    limit: Limit = _MOST_ROWS,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show which rows of a table differ between two epochs.

    Example: penstock state diff shop spent before-deploy
    """
    with (
        telling_errors(),
        _open(job, url, before) as old,
        _open(job, url, after) as new,
    ):
        earlier, later = _table(old, table), _table(new, table)
        keys = [field.name for field in later.key_fields]
        changes = diff_rows(earlier.arrow(), later.arrow(), keys)
        _print_rows(changes, as_json=as_json, limit=limit)


@state_app.command("export")
def export(
    job: Job,
    table: Table,
    path: Annotated[Path, typer.Argument(help="A file that ends in .parquet or .csv.")],
    epoch: EpochOption = None,
    url: Url = None,
) -> None:
    """Write all rows of a table to a file.

    Example: penstock state export shop spent spent.parquet
    """
    with telling_errors(), _open(job, url, epoch) as state:
        if path.suffix not in {".parquet", ".csv"}:
            raise UserError(
                f"{str(path)!r} must end in .parquet or .csv", code=ErrorCode.INVALID_CONFIG
            )
        if path.exists():
            raise UserError(
                f"there is a file {str(path)!r} already: choose another name",
                code=ErrorCode.INVALID_CONFIG,
            )
        rows = _table(state, table).arrow()
        if path.suffix == ".parquet":
            pq.write_table(rows, path)
        else:
            pa_csv.write_csv(rows, path)
        typer.echo(f"{rows.num_rows:,} rows of epoch {state.epoch} are in {path}")
