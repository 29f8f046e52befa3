"""Queries of a user over state, by DuckDB, which can reach nothing but the tables it is given.

No file, folder, network, extension, environment or Python variable is in reach, memory and time
are limited, and the settings are locked before the user's text is run. Nothing is kept between
two queries: each has a database of its own, in memory.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.clock import DurationLike, to_micros
from penstock.errors import ErrorCode, UserError

if TYPE_CHECKING:
    import duckdb

DEFAULT_SECONDS = "60s"
DEFAULT_MEMORY = "2GB"
_SETTINGS = {
    # Without this, DuckDB lets queries read and write in a folder `.tmp` of the working folder.
    "temp_directory": "''",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "enable_external_access": "false",
}


def query_tables(
    tables: Mapping[str, pa.Table],
    sql: str,
    *,
    timeout: DurationLike = DEFAULT_SECONDS,
    memory: str = DEFAULT_MEMORY,
) -> pa.Table:
    """Run a query over some tables by name, and return its rows.

    >>> import pyarrow as pa
    >>> spent = pa.table({"user": ["ada", "bob"], "total": [7, 5]})
    >>> query_tables({"spent": spent}, "select sum(total) as total from spent").to_pylist()
    [{'total': Decimal('12')}]
    """
    import duckdb

    seconds = to_micros(timeout, "timeout") / 1_000_000
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        _lock(connection, seconds, memory)
        try:
            with _limited(connection, seconds):
                found: pa.Table = connection.sql(sql).to_arrow_table()
                return found
        except duckdb.InterruptException as error:
            raise UserError(
                f"the query took longer than {timeout}: narrow it, or allow more time",
                code=ErrorCode.INVALID_CONFIG,
            ) from error
        except duckdb.Error as error:
            raise UserError(
                f"the query cannot be run: {error}", code=ErrorCode.INVALID_CONFIG
            ) from error
        except AttributeError as error:
            # What is no query, such as a statement without rows, gives no relation.
            raise UserError(
                "only queries that return rows can be run", code=ErrorCode.INVALID_CONFIG
            ) from error


def _lock(connection: "duckdb.DuckDBPyConnection", seconds: float, memory: str) -> None:
    import duckdb

    for name, value in _SETTINGS.items():
        connection.execute(f"SET {name} = {value}")
    try:
        connection.execute("SET memory_limit = ?", [memory])
    except duckdb.Error as error:
        raise UserError(
            f"memory {memory!r} is no size: write 512MB or 2GB",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
    connection.execute(f"SET max_execution_time = {max(1, int(seconds * 1_000))}")
    connection.execute("SET lock_configuration = true")


@contextmanager
def _limited(connection: "duckdb.DuckDBPyConnection", seconds: float) -> Iterator[None]:
    """Interrupt what takes too long, also where DuckDB's own limit does not look."""
    timer = threading.Timer(seconds + 1, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
