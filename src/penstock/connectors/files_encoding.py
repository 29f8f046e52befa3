"""Part files while they are written: rows in, the bytes of one file out.

Rows are encoded a row group at a time, so what is held of a file is its encoded bytes.
"""

import io
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.files_json_types import find_json_problems, to_json_lines

Format: TypeAlias = Literal["parquet", "jsonl"]


class PartWriter(ABC):
    """One file being written in memory. Used by one thread, closed once."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """How much is encoded so far."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Add rows; in Parquet they are a row group."""

    @abstractmethod
    def close(self) -> bytes:
        """Return the whole file."""


class ParquetPart(PartWriter):
    """A Parquet file: Zstd at its fastest level, dictionaries for text, differences for numbers."""

    def __init__(self, schema: pa.Schema) -> None:
        self._out = pa.BufferOutputStream()
        self._writer = _parquet_writer(self._out, schema)

    @property
    def size_bytes(self) -> int:
        """How much is encoded so far."""
        return int(self._out.tell())

    def write(self, rows: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> bytes:
        """Write the footer; return the file."""
        self._writer.close()
        return self._out.getvalue().to_pybytes()


class JsonLinesPart(PartWriter):
    """A file of JSON lines; `files_json_types` says what types look like."""

    def __init__(self) -> None:
        self._out = io.BytesIO()

    @property
    def size_bytes(self) -> int:
        """How much is encoded so far."""
        return self._out.tell()

    def write(self, rows: pa.Table) -> None:
        """Write a line per row."""
        self._out.write(to_json_lines(rows))

    def close(self) -> bytes:
        """Return the file."""
        return self._out.getvalue()


def open_part(form: Format, schema: pa.Schema) -> PartWriter:
    """Begin a file of rows of this schema."""
    return ParquetPart(schema) if form == "parquet" else JsonLinesPart()


def find_format_problems(form: Format, schema: pa.Schema) -> list[str]:
    """Return what of this schema the format cannot hold."""
    if not schema.names:
        return ["the rows have no columns: a file needs one at least"]
    if form == "jsonl":
        return find_json_problems(schema)
    return [
        f"column {field.name!r} of type {field.type} cannot be written to Parquet: {reason}"
        for field in schema
        if (reason := _find_parquet_problem(field)) is not None
    ]


def _find_parquet_problem(field: "pa.Field[Any]") -> str | None:
    schema = pa.schema([field])
    try:
        with _parquet_writer(pa.BufferOutputStream(), schema) as writer:
            writer.write_table(schema.empty_table())
    except (pa.ArrowException, NotImplementedError, OSError) as error:
        return str(error)
    return None


def _parquet_writer(out: pa.BufferOutputStream, schema: pa.Schema) -> pq.ParquetWriter:
    # A dictionary of numbers rarely pays, and finding that out halves the speed.
    text: Any = [column.name for column in schema if _has_dictionary(column.type)]
    # Differences are smaller than numbers: half the time and less to compress.
    numbers = {c.name: "DELTA_BINARY_PACKED" for c in schema if _has_differences(c.type)}
    return pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=text,
        column_encoding=numbers,
    )


def _has_differences(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    )


def _has_dictionary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_dictionary(kind)
    )
