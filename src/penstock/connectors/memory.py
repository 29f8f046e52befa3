"""Lists in, lists out: a source over rows in memory, and a sink that collects rows.

They are for tests, examples and notebooks. The source's rows are part of the graph. The sink's
rows travel as commit data, so a list holds the rows of acknowledged epochs only, and a repeated
commit changes nothing. Lists live in the driver's process and end with it.

    clicks = list_source([{"user": "a", "ts": datetime(2026, 1, 1)}], time_column="ts")
    out = list_sink("out")          # put into the graph; read it after the run
    out.rows()

`StagingSink` is the base of sinks with small outputs: the rows of an epoch are kept in its
checkpoint, as an Arrow IPC stream, until they are committed.
"""

import reprlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import relay, stored_type, without_views
from penstock.core.batch import empty_batch, from_ipc, to_batches, to_ipc, to_rows
from penstock.core.ids import Epoch, Name
from penstock.core.rows import is_pandas, to_column
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.frames import SchemaLike, as_schema
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.state.tables.specs import TableSpec, global_table

STAGED = "staged"
"""The table whose commit data carries the rows of an epoch."""


def staged_tables(commit_data: Mapping[str, Mapping[int, bytes]]) -> list[pa.Table]:
    """Return the staged rows of all subtasks of an epoch, in order of subtask."""
    staged = commit_data.get(STAGED, {})
    return [from_ipc(staged[subtask]) for subtask in sorted(staged)]


class StagingSink(ArrowOperator):
    """A sink whose commit gets the rows of the epoch. Subclasses implement `handle_commit`."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        """The rows of this epoch so far; empty between epochs."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Emit nothing."""

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [global_table(STAGED, str, bytes, uses_two_phase_commit=True)]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Keep the rows until the epoch is complete."""
        self._batches.append(batch)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Stage the epoch's rows; an epoch without rows has nothing to commit."""
        batches, self._batches = self._batches, []
        if batches:
            ctx.insert_committing_data(STAGED, to_ipc(batches, batches[0].schema))


DEFAULT_BATCH_ROWS = 8192
_Commit: TypeAlias = tuple[str, Epoch, str]
"""Job, epoch and operator."""

_LISTS: dict[str, dict[_Commit, tuple[pa.Table, ...]]] = {}
_LOCK = Lock()
"""Guards the lists: several drivers of one process may commit to one list."""


def list_source(
    rows: Any,
    schema: SchemaLike = None,
    *,
    splits: int = 1,
    time_column: str | None = None,
    batch_rows: int = DEFAULT_BATCH_ROWS,
) -> OperatorSpec:
    """Read rows from memory: dictionaries, batches, an Arrow table, a Polars or pandas frame.

    Columns by name (`{"a": [1, 2]}`) will do, too.

    They are dealt to `splits` in turn, row by row, so that event time advances equally in all
    of them. Unless `schema` is given, the columns are all keys that occur in dictionaries; a
    key that a row lacks is null. A key that a given schema does not name is an error. Views of
    text or bytes become plain columns.

    >>> source = list_source([{"a": 1}, {"a": 2, "b": "x"}])
    >>> StreamSchema.from_bytes(source.config["schema"]).arrow.names
    ['a', 'b']
    """
    if splits < 1 or batch_rows < 1:
        raise UserError(
            f"a list source cannot have {splits} splits and batches of {batch_rows} rows: "
            "both are at least 1",
            code=ErrorCode.INVALID_NUMBER,
        )
    schema = as_schema(schema)
    given = schema.arrow if isinstance(schema, StreamSchema) else schema
    table = _without_views(_to_table(rows, given))
    if isinstance(schema, StreamSchema):
        stream = StreamSchema(table.schema, schema.time_column, schema.key_columns)
    else:
        stream = StreamSchema(table.schema, time_column)
    parts = [
        table.take(np.arange(index, table.num_rows, splits)) for index in range(splits)
    ]
    streams = tuple(to_ipc(part.to_batches(), table.schema) for part in parts)
    return ListSourceConfig(stream.to_bytes(), streams, batch_rows).to_operator_spec()


def _to_table(rows: Any, schema: pa.Schema | None) -> pa.Table:
    _refuse_objects(rows)
    if isinstance(rows, pl.DataFrame):
        rows = rows.to_arrow()
    if is_pandas(rows) and hasattr(rows, "columns"):
        rows = {str(name): rows[name] for name in rows.columns}
    if isinstance(rows, Mapping) and rows:
        return _from_columns(rows, schema)
    if isinstance(rows, pa.RecordBatch | pa.Table):
        rows = [rows]
    listed = list(rows) if isinstance(rows, Iterable) else [rows]
    if schema is None and not listed:
        raise UserError(
            "a list source without rows needs a schema: pass schema=pa.schema([...])",
            code=ErrorCode.INVALID_CONFIG,
        )
    if listed and not isinstance(listed[0], pa.RecordBatch | pa.Table):
        return _from_dictionaries(listed, schema)
    known = listed[0].schema if schema is None else schema
    batches = [batch for part in listed for batch in to_batches(part, known)]
    return pa.Table.from_batches(batches, known)


def _from_dictionaries(rows: list[Any], schema: pa.Schema | None) -> pa.Table:
    """Return rows as a table of all their keys; Arrow alone would take those of the first row."""
    odd = [row for row in rows if not isinstance(row, Mapping)]
    if odd:
        raise SchemaError(
            f"a list source was given {type(odd[0]).__name__} ({reprlib.repr(odd[0])}) as a row: rows "
            "are dictionaries, or come as record batches, a pyarrow.Table, a Polars or pandas "
            "DataFrame, or as columns by name"
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return _from_columns({name: [row.get(name) for row in rows] for name in names}, schema)


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    """Return columns by name as a table; those that only the schema names are null."""
    names = list(columns)
    if schema is not None:
        unknown = columns.keys() - set(schema.names)
        if unknown:
            raise SchemaError(
                "rows of a list source have keys that its schema does not name: "
                f"{', '.join(map(repr, sorted(map(str, unknown))))}. Add them to schema=, or "
                "leave it out"
            )
        names = schema.names
    try:
        nulls = [None] * max(map(len, columns.values()))
        arrays = [
            _to_array(columns.get(name, nulls), schema and schema.field(name).type)
            for name in names
        ]
        return (
            pa.Table.from_arrays(arrays, schema=schema)
            if schema
            else pa.table(arrays, names)
        )
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SchemaError(
            f"the rows of a list source do not fit into columns of one type each: {error}. "
            "Correct the values, or say the types with schema=pa.schema([...])"
        ) from error


def _refuse_objects(rows: Any) -> None:
    """Refuse Python objects in series of Polars, which would give their addresses."""
    columns = rows.to_dict() if isinstance(rows, pl.DataFrame) else rows
    given = columns.items() if isinstance(columns, Mapping) else ()
    objects = [n for n, c in given if isinstance(c, pl.Series) and c.dtype == pl.Object]
    if objects:
        raise SchemaError(
            f"a list source cannot take the columns {objects}, which hold Python objects: make "
            "them of plain values"
        )


def _to_array(values: Any, kind: Any) -> Any:
    try:
        array = to_column(values, kind)
    except pa.ArrowNotImplementedError:
        if kind is None:
            raise
        # Arrow makes dictionaries of few types out of Python's values.
        array = to_column(values, stored_type(kind))
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if kind is None else relay(array, kind)


def _without_views(table: pa.Table) -> pa.Table:
    """Return rows without views of text, bytes or lists: Arrow cannot pick rows out of all views."""
    encoded = [f.name for f in table.schema if pa.types.is_run_end_encoded(f.type)]
    if encoded:
        raise SchemaError(
            f"a list source cannot take the run-end encoded columns {encoded}: decode them, with "
            "pyarrow.compute.run_end_decode"
        )
    plain = pa.schema([f.with_type(without_views(f.type)) for f in table.schema])
    plain = plain.with_metadata(table.schema.metadata)
    if plain.equals(table.schema):
        return table
    # Arrow's own cast loses values of list views.
    columns = [
        pa.chunked_array([relay(chunk, field.type) for chunk in column.chunks], field.type)
        for field, column in zip(plain, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=plain)


@dataclass(frozen=True, slots=True)
class ListSourceConfig(OperatorConfig):
    """The config of kind "list_source"."""

    kind: ClassVar[str] = "list_source"

    schema: bytes
    """The result of `StreamSchema.to_bytes`."""
    splits: tuple[bytes, ...]
    """The rows of each split as an Arrow IPC stream."""
    batch_rows: int = DEFAULT_BATCH_ROWS

    @override
    def shown(self) -> Mapping[str, str]:
        row_count = sum(from_ipc(split).num_rows for split in self.splits)
        return {"rows": str(row_count), "splits": str(len(self.splits))}


class ListSource(Configured[ListSourceConfig], SourceOperator):
    """Reads rows that are part of the graph. The offset of a split is its next row."""

    def __init__(self, config: ListSourceConfig) -> None:
        super().__init__(config)
        self._stream = StreamSchema.from_bytes(config.schema)
        self._splits = {str(index): data for index, data in enumerate(config.splits)}
        self._rows: dict[str, pa.RecordBatch] = {}

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def has_keys_in_several_splits(self) -> bool:
        return len(self._splits) > 1

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Give every split that has not ended an equal share of the budget."""
        self._check_known(known)
        open_splits = [n for n in self._splits if not known.get(n, SplitState()).ended]
        plans = []
        has_more = False
        for name in open_splits:
            start = known.get(name, SplitState()).offset or 0
            rows = self._rows_of(name)
            row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
            affordable = min(budget.rows, budget.size_bytes // row_bytes)
            end = min(start + max(1, affordable // len(open_splits)), rows.num_rows)
            has_more |= end < rows.num_rows
            plans.append(SplitPlan(name, start, end, weight=end - start))
        return SourcePlan(tuple(plans), is_complete=True, has_more=has_more)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Read the planned rows, the splits in turn, and end each after its last row."""
        waiting = deque((split.name, split.start or 0, split.end) for split in ctx.splits)
        # Every epoch begins with another split, so that a small budget reaches all of them.
        waiting.rotate(-int(ctx.epoch))
        while waiting and not ctx.budget.is_spent:
            name, start, end = waiting.popleft()
            rows = self._rows_of(name)
            end = rows.num_rows if end is None else end
            upto = min(start + self.config.batch_rows, end)
            if upto > start:
                collector.collect(rows.slice(start, upto - start), split=name)
                ctx.advance(name, upto)
            if upto == rows.num_rows:
                ctx.end_split(name)
            elif upto < end:
                waiting.append((name, upto, end))

    def _rows_of(self, name: str) -> pa.RecordBatch:
        if name not in self._rows:
            batches = from_ipc(self._splits[name]).combine_chunks().to_batches()
            if len(batches) > 1:
                raise UserError(
                    f"split {name!r} of a list source has more than 2 GiB in one column: use "
                    "more splits, or files",
                    code=ErrorCode.INVALID_CONFIG,
                )
            self._rows[name] = batches[0] if batches else empty_batch(self._stream.arrow)
        return self._rows[name]

    def _check_known(self, known: Mapping[str, SplitState]) -> None:
        """Refuse state of other rows: its offsets would point to wrong rows."""
        problems = []
        for name, state in known.items():
            row_count = self._rows_of(name).num_rows if name in self._splits else None
            if row_count is None or (state.offset or 0) > row_count:
                has = "does not exist" if row_count is None else f"has {row_count} rows"
                problems.append(
                    f"split {name!r} was read up to row {state.offset}, and now it {has}"
                )
        if problems:
            raise UserError(
                "the list source has other rows than when its state was written: "
                f"{'; '.join(problems)}. Give the rows of that run first, then new ones, with "
                "as many splits, or start the job anew",
                code=ErrorCode.UNKNOWN_SPLIT,
            )


@dataclass(frozen=True, slots=True)
class ListSinkSpec(OperatorSpec):
    """A list sink of a graph; it gives access to what was collected in this process."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, in order of epoch, then subtask.

        Times that Python cannot represent, such as those after the year 9999, are the whole
        numbers that Arrow stores.
        """
        return [row for table in self._tables() for row in to_rows(table)]

    def rows_by_epoch(self) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of each epoch that has any: what is right after every epoch shows here.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-rows-by-epoch")
        >>> p.read("rows", pen.list_source([{"n": 1}, {"n": 2}])).write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows_by_epoch()
        {1: [{'n': 1}, {'n': 2}]}
        """
        epochs: dict[int, list[dict[str, Any]]] = {}
        for epoch, table in self._committed():
            if table.num_rows:
                epochs.setdefault(epoch, []).extend(to_rows(table))
        return epochs

    def table(self) -> pa.Table:
        """Return the rows as one table, which has no columns before the first commit."""
        tables = self._tables()
        return pa.concat_tables(tables) if tables else pa.table({})

    def batches(self) -> list[pa.RecordBatch]:
        """Return the rows as batches, none of them empty."""
        return [batch for table in self._tables() for batch in table.to_batches()]

    def clear(self) -> None:
        """Forget all rows, and which epochs were collected."""
        with _LOCK:
            _LISTS.pop(str(self.config["name"]), None)

    def _tables(self) -> list[pa.Table]:
        return [table for _, table in self._committed()]

    def _committed(self) -> list[tuple[int, pa.Table]]:
        """Return the tables with their epochs, in order."""
        with _LOCK:
            commits = _LISTS.get(str(self.config["name"]), {}).copy()
        return [
            (commit[1], table) for commit in sorted(commits) for table in commits[commit]
        ]


@dataclass(frozen=True, slots=True)
class ListSinkConfig(OperatorConfig):
    """The config of kind "list_sink"."""

    kind: ClassVar[str] = "list_sink"

    name: str

    @override
    def shown(self) -> Mapping[str, str]:
        return {"name": self.name}


def list_sink(name: str) -> ListSinkSpec:
    """Collect rows in the list of this name; sinks of one name share it."""
    return ListSinkSpec(ListSinkConfig.kind, {"name": str(Name(name))})


class ListSink(Configured[ListSinkConfig], StagingSink):
    """Collects rows in a list of the driver's process."""

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Add the epoch's rows, unless an earlier commit has added them."""
        tables = tuple(staged_tables(commit_data))
        commit = (f"{ctx.task.job} {ctx.identity}", epoch, ctx.task.operator)
        with _LOCK:
            _LISTS.setdefault(self.config.name, {}).setdefault(commit, tables)
