"""Files for the files source to read: written in one go, by their format."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[Mapping[str, Any]]

SCHEMA: pa.Schema = pa.schema({"n": pa.int64(), "s": pa.string()})  # type: ignore[arg-type]


def some_rows(start: int, stop: int) -> list[dict[str, Any]]:
    """Return rows numbered from `start` to before `stop`."""
    return [{"n": n, "s": f"row {n}"} for n in range(start, stop)]


def to_bytes(format_: str, rows: Rows, *, row_group_size: int = 7) -> bytes:
    """Return a file of the columns n and s."""
    if format_ == "parquet":
        out = pa.BufferOutputStream()
        table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
        pq.write_table(table, out, row_group_size=row_group_size)
        return out.getvalue().to_pybytes()
    if format_ == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    text = io.StringIO()
    writer = csv.DictWriter(
        text, SCHEMA.names, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
    )
    text.write("n,s\n")
    writer.writerows(rows)
    return text.getvalue().encode()


def write_file(path: Path, rows: Rows, *, row_group_size: int = 7) -> None:
    """Write a file of the format that its ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    format_ = path.suffix.removeprefix(".")
    path.write_bytes(to_bytes(format_, rows, row_group_size=row_group_size))
