"""Columns that the names of folders tell, as Hive and Spark name them: `day=2026-01-01/`.

Pure. The folders are those of a file's path below the source's root, so behind the first
wildcard. A column that the file itself has keeps the file's values; in JSON lines, where a key
may be absent, the folder tells those that are null. What is told are texts: with a declared
schema they become its types, and else the narrowest type that gives back the same texts.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.files.names import NULL_PARTITION
from penstock.core.arrow_types import relay, stored_type

Folders: TypeAlias = Mapping[str, str | None]
"""The text of each column; None is null."""

_TOLD: tuple[pa.DataType, ...] = (
    pa.int64(),
    pa.bool_(),
    pa.date32(),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
)


def read_folders(path: str) -> dict[str, str | None]:
    """Return what the folders of a path tell.

    >>> read_folders("day=2026-01-01/shop=a%2Fb/x/part.csv")
    {'day': '2026-01-01', 'shop': 'a/b'}
    """
    found: dict[str, str | None] = {}
    for segment in path.split("/")[:-1]:
        name, equals, text = segment.partition("=")
        if name and equals:
            is_null = text in ("", NULL_PARTITION)
            found[unquote(name)] = None if is_null else unquote(text)
    return found


def infer_folders(paths: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    """Return the columns that the folders of the first path tell, in types for all paths.

    >>> infer_folders(["day=2026-01-01/shop=1/a.csv", "day=2026-01-02/shop=b/a.csv"])
    [('day', DataType(date32[day])), ('shop', DataType(string))]
    """
    texts: dict[str, set[str]] = {name: set() for name in read_folders(paths[0])}
    for path in paths:
        for name, text in read_folders(path).items():
            if name in texts and text is not None:
                texts[name].add(text)
    return [(name, _infer(values)) for name, values in texts.items()]


def add_folders(
    rows: pa.Table | pa.RecordBatch, folders: Folders, schema: pa.Schema
) -> pa.Table:
    """Return rows in the columns of a schema: those that lack values take the folders'.

    Raises ValueError if a text is no value of its column.
    """
    columns: list[Any] = []
    own = set(rows.schema.names)
    for field in schema:
        column: Any = rows.column(field.name) if field.name in own else None
        is_told = field.name in folders and (column is None or column.null_count)
        if is_told:
            told = _value(folders[field.name], field.type)
            if told.null_count and not field.nullable:
                raise ValueError(
                    f"its folder says that {field.name!r} is null, which the schema does not "
                    "allow"
                )
            # Arrow cannot repeat a value in all layouts, so it is repeated in the plain one.
            told = relay(told.take(np.zeros(rows.num_rows, np.int64)), field.type)
            is_absent = column is None or column.null_count == rows.num_rows
            column = told if is_absent else pc.coalesce(column, told)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema.names)


def _infer(texts: Iterable[str]) -> pa.DataType:
    values: Any = pa.array(sorted(texts), pa.string())
    for kind in _TOLD if len(values) else ():
        try:
            if values.cast(kind).cast(pa.string()).equals(values):
                return kind
        except pa.ArrowInvalid:
            continue
    return pa.string()


@lru_cache(maxsize=256)
def _value(text: str | None, kind: Any) -> Any:
    """Return an array of the one value that a text means, in the plain layout of its type."""
    try:
        return pa.array([text], pa.string()).cast(stored_type(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"its folder says {text!r}, which is no {kind}") from error
