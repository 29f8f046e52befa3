"""A Delta table in the contract suite of sources: every write is a version with one file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake
from typing_extensions import override

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from tests.contract.sources.built_in_sources import drifted
from tests.contract.sources.source_under_test import (
    SCHEMA,
    Drift,
    Line,
    SourceUnderTest,
    row_of,
)


class DeltaUnderTest(SourceUnderTest):
    """A table in a folder, of files with small row groups."""

    name = "delta"
    smallest_piece = 4
    options: ClassVar[Mapping[str, Any]] = {}
    cannot: ClassVar[Mapping[Line, str]] = {
        Line.BAD_ROWS: "the types are the table's own, so a file that does not fit is refused whole"
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.table = str(folder / "table")
        DeltaTable.create(self.table, pa.schema(SCHEMA))

    @override
    def write(self, numbers: Sequence[int]) -> None:
        self._append(pa.Table.from_pylist([row_of(n) for n in numbers], SCHEMA))

    @override
    def write_drifted(self, numbers: Sequence[int], drift: Drift) -> None:
        rows: Any = pa.Table.from_pylist(drifted(numbers, drift))
        if drift is Drift.OTHER_TYPE:
            write_deltalake(self.table, rows, mode="overwrite", schema_mode="overwrite")
        else:
            self._append(rows)

    def _append(self, rows: pa.Table) -> None:
        write_deltalake(
            self.table,
            rows,
            mode="append",
            schema_mode="merge",
            writer_properties=WriterProperties(max_row_group_size=self.smallest_piece),
        )

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        return pen.delta(
            self.table,
            schema=StreamSchema(SCHEMA, time_column="at"),
            follow=self.poll if follows else False,
            **self.options,
        ).source_spec()


class DeltaChangelogUnderTest(DeltaUnderTest):
    """The same table read as a changelog: a write is three versions, which add, change and delete.

    Who reads the table as of a version sees inserts alone; who follows it sees all changes.
    """

    name = "delta-changelog"
    options: ClassVar[Mapping[str, Any]] = {"rewrites": "changelog", "key": "n"}

    @override
    def write(self, numbers: Sequence[int]) -> None:
        rows = [{**row_of(n), "s": "to be changed"} for n in numbers]
        mistaken = [{**row, "n": -1 - row["n"]} for row in rows[:1]]
        self._append(pa.Table.from_pylist([*rows, *mistaken], SCHEMA))
        groups = WriterProperties(max_row_group_size=self.smallest_piece)
        DeltaTable(self.table).update(
            {"s": "concat('row ', cast(n as string))"},
            predicate="s = 'to be changed' and n >= 0",
            writer_properties=groups,
        )
        DeltaTable(self.table).delete("n < 0", writer_properties=groups)

    @override
    def folded(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        counts: Counter[tuple[tuple[str, Any], ...]] = Counter()
        for row in rows:
            columns = tuple(item for item in row.items() if item[0] != "change")
            counts[columns] += 1 if row["change"] in ("insert", "update-after") else -1
        assert min(counts.values(), default=0) >= 0
        return [dict(columns) for columns in counts.elements()]
