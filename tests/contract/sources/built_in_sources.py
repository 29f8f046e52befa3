"""The sources that need no server: files of every format, lists, impulses and Nexmark."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

import penstock as pen
from penstock.connectors.impulse import impulse
from penstock.connectors.memory import list_source
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from tests.builders.files_job import compress
from tests.contract.sources.source_under_test import (
    EPOCH,
    SCHEMA,
    Drift,
    Line,
    SourceUnderTest,
    row_of,
)

_NO_INPUT = "it makes its rows, so none can be bad or of another schema"
_NO_UTF8 = b"\xff\xff"
_GIVEN = "its rows are given with the pipeline, which checks them when it is built"


def drifted(numbers: Sequence[int], drift: Drift) -> list[dict[str, Any]]:
    """Return rows that differ from the schema."""
    rows = [row_of(n) for n in numbers]
    for row in rows:
        if drift is Drift.NEW_COLUMN:
            row["more"] = True
        elif drift is Drift.MISSING_COLUMN:
            del row["s"]
        else:
            row["n"] = f"n{row['n']}"
    return rows


class FilesUnderTest(SourceUnderTest):
    """Files of one format, a new one for every write."""

    format: ClassVar[str]

    def _next_path(self) -> Path:
        return self.folder / f"{len(list(self.folder.iterdir())):04}.{self.format}"

    @override
    def write(self, numbers: Sequence[int]) -> None:
        self._put(self.to_bytes([row_of(n) for n in numbers]))

    @override
    def write_drifted(self, numbers: Sequence[int], drift: Drift) -> None:
        self._put(self.to_bytes(drifted(numbers, drift)))

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        return pen.files(
            self.folder / f"*.{self.format}",
            schema=StreamSchema(SCHEMA, time_column="at"),
            discover=self.poll if follows else False,
            in_time_order=True,
            on_bad="divert" if diverts_bad else "fail",
        ).source_spec()

    def to_bytes(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        """Return rows as a file."""
        raise NotImplementedError

    def _put(self, data: bytes) -> None:
        path = self._next_path()
        # A file appears whole: its name begins with an underscore until then.
        staged = path.with_name(f"_{path.name}")
        staged.write_bytes(data)
        staged.rename(path)


class ParquetFiles(FilesUnderTest):
    """Parquet of small row groups."""

    name = "parquet"
    format = "parquet"
    smallest_piece = 4

    @override
    def write_bad(self, count: int) -> None:
        size = len(_NO_UTF8)
        ends: Any = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        text = [pa.py_buffer(ends), pa.py_buffer(_NO_UTF8 * count)]
        rows = {
            "n": pa.array(range(count)),
            "s": pa.Array.from_buffers(pa.string(), count, [None, *text]),
            "at": pa.array([EPOCH] * count, SCHEMA.field("at").type),
        }
        out = pa.BufferOutputStream()
        pq.write_table(pa.table(rows), out, row_group_size=self.smallest_piece)
        self._put(out.getvalue().to_pybytes())

    @override
    def to_bytes(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        names = dict.fromkeys(name for row in rows for name in row)
        table = pa.table(
            {
                name: pa.array(
                    [row.get(name) for row in rows],
                    SCHEMA.field(name).type
                    if name in SCHEMA.names and not isinstance(rows[0][name], str)
                    else None,
                )
                for name in names
            }
        )
        out = pa.BufferOutputStream()
        pq.write_table(table, out, row_group_size=self.smallest_piece)
        return out.getvalue().to_pybytes()


class JsonLinesFiles(FilesUnderTest):
    """JSON lines."""

    name = "jsonl"
    format = "jsonl"

    @override
    def to_bytes(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        return "".join(f"{json.dumps(row, default=_iso)}\n" for row in rows).encode()

    @override
    def write_bad(self, count: int) -> None:
        self._put(b"{no row}\n" * count)


class CompressedFiles(JsonLinesFiles):
    """JSON lines behind gzip, in which no position can be sought."""

    name = "jsonl.gz"
    format = "jsonl.gz"

    @override
    def _put(self, data: bytes) -> None:
        super()._put(compress("gz", data))


class TextFiles(FilesUnderTest):
    """Lines of text, each of which is JSON for the suite alone."""

    name = "text"
    format = "log"
    cannot: ClassVar[Mapping[Line, str]] = {
        Line.EVENT_TIME: "a line has no time until a step takes it apart",
        Line.DRIFT: "a line of text has one column, whatever it says",
    }

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        return pen.files(
            self.folder / "*.log",
            format="text",
            schema={"value": str},
            discover=self.poll if follows else False,
            on_bad="divert" if diverts_bad else "fail",
        ).source_spec()

    @override
    def to_bytes(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        return "".join(f"{json.dumps(row, default=_iso)}\n" for row in rows).encode()

    @override
    def number_of(self, row: Mapping[str, Any]) -> int:
        return int(json.loads(row["value"])["n"])

    @override
    def check_row(self, row: Mapping[str, Any]) -> None:
        assert row["value"] == json.dumps(row_of(self.number_of(row)), default=_iso)

    @override
    def write_bad(self, count: int) -> None:
        self._put((_NO_UTF8 + b"\n") * count)


class DebeziumFiles(JsonLinesFiles):
    """Lines of Debezium's records, each of which adds a row of the suite to a table."""

    name = "debezium"
    format = "changes"

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        own: list[pa.Field[Any]] = [
            pa.field("after", pa.struct([SCHEMA.field("n"), SCHEMA.field("s")])),
            pa.field("op", pa.string()),
            SCHEMA.field("at"),
        ]
        return pen.files(
            self.folder / "*.changes",
            format="debezium",
            schema=StreamSchema(pa.schema(own), time_column="at"),
            discover=self.poll if follows else False,
            in_time_order=True,
            on_bad="divert" if diverts_bad else "fail",
        ).source_spec()

    @override
    def to_bytes(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        records = []
        for row in rows:
            after = {name: value for name, value in row.items() if name != "at"}
            records.append({"before": None, "after": after, "op": "c", "at": row["at"]})
        return super().to_bytes(records)

    @override
    def number_of(self, row: Mapping[str, Any]) -> int:
        return int(row.get("after", row)["n"])

    @override
    def folded(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        assert {row["op"] for row in rows} <= {"c"}
        return [{**row["after"], "at": row["at"]} for row in rows]


class CsvFiles(FilesUnderTest):
    """CSV with a header."""

    name = "csv"
    format = "csv"

    @override
    def to_bytes(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            [{k: _iso(v) if k == "at" else v for k, v in r.items()} for r in rows]
        )
        return text.getvalue().encode()

    @override
    def write_bad(self, count: int) -> None:
        self._put(b"n,s,at\n" + b"no,number,here\n" * count)


def _iso(value: Any) -> str:
    return str(value.isoformat())


class ListUnderTest(SourceUnderTest):
    """Rows in memory, all in one list."""

    name = "list"
    cannot: ClassVar[Mapping[Line, str]] = {
        Line.IDLE: "it ends with its rows",
        Line.BAD_ROWS: _GIVEN,
        Line.DRIFT: _GIVEN,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._rows: list[dict[str, Any]] = []

    @override
    def write(self, numbers: Sequence[int]) -> None:
        self._rows += [row_of(n) for n in numbers]

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        stream = StreamSchema(SCHEMA, time_column="at")
        return list_source(self._rows, schema=stream, splits=3)

    @override
    def order_group(self, number: int) -> int:
        return number % 3


class _Counted(SourceUnderTest):
    """A source that makes its rows: it can be told only how many."""

    cannot: ClassVar[Mapping[Line, str]] = {
        Line.IDLE: "it makes its rows, so there is none to wait for",
        Line.BAD_ROWS: _NO_INPUT,
        Line.DRIFT: _NO_INPUT,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._count = 0

    @override
    def write(self, numbers: Sequence[int]) -> None:
        self._count += len(numbers)


class ImpulseUnderTest(_Counted):
    """The impulse source in three splits."""

    name = "impulse"
    smallest_piece = 3

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        return impulse(self._count, splits=3, start=EPOCH, step="1s")

    @override
    def number_of(self, row: Mapping[str, Any]) -> int:
        return int(row["counter"])

    @override
    def order_group(self, number: int) -> int:
        return number % 3

    @override
    def check_row(self, row: Mapping[str, Any]) -> None:
        assert row["ts"].replace(tzinfo=EPOCH.tzinfo) == row_of(row["counter"])["at"]


class NexmarkUnderTest(_Counted):
    """The events of Nexmark in two splits; an event's time tells its number."""

    name = "nexmark"
    smallest_piece = 2

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        return pen.nexmark(self._count, splits=2, start=EPOCH, gap="1s")

    @override
    def order_group(self, number: int) -> int:
        return number % 2

    @override
    def number_of(self, row: Mapping[str, Any]) -> int:
        return int((row["date_time"].replace(tzinfo=EPOCH.tzinfo) - EPOCH).total_seconds())

    @override
    def check_row(self, row: Mapping[str, Any]) -> None:
        kinds = ("person", "auction", "bid")
        assert [kind for kind in kinds if row[kind] is not None] == [
            kinds[row["event_type"]]
        ]
