"""Lookups: what `join` takes on its right side besides streams, and how it gets into a graph.

| function | rows are |
|---|---|
| `lookup_files` | those of a folder, read again every `reload` |
| `lookup_delta` | those of a Delta table, its newest version every `reload` |
| `lookup_frame` | those of a frame, or what a function returns, called again every `reload`; a Spark DataFrame is computed again by the driver |
| `lookup_stream` | the last ones per key of a small stream, which every subtask gets whole |
| `lookup_function` | what an async function says about a batch of keys |

`lookup_files` and `lookup_delta` are among the connectors.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import pyarrow as pa
from typing_extensions import override

from penstock.api.graph_builder import GraphBuilder, Port
from penstock.core.batch import to_batches, to_ipc
from penstock.core.clock import DurationLike, to_micros
from penstock.core.ids import OperatorId, is_whole
from penstock.core.rows import RowsLike, is_pandas
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import Exchange
from penstock.operators.aggregates.frames import check_groupable
from penstock.operators.frames import SchemaLike, as_schema, to_names
from penstock.operators.joins.function_lookup import FunctionLookupConfig
from penstock.operators.joins.lookup_join import (
    HOWS,
    FrameLookupConfig,
    Lookup,
    LookupConfig,
    to_reload_micros,
)
from penstock.operators.joins.sides import check_problems
from penstock.operators.joins.stream_lookup import StreamLookupConfig
from penstock.operators.joins.version_lookup import (
    VersionLookupConfig,
    VersionSourceConfig,
    check_size,
    keep_loader,
)
from penstock.operators.user_functions import (
    USER_ERRORS,
    name_of,
    pickle_function,
    to_failure,
)

if TYPE_CHECKING:
    from penstock.api.stream import Stream


def lookup_frame(
    rows: RowsLike | Callable[[], RowsLike],
    *,
    reload: DurationLike | None = None,
    schema: SchemaLike = None,
) -> "FrameLookup | VersionLookup":
    """Look up rows of a Polars, pandas or Spark DataFrame, an Arrow table or a list, in `join`.

    The rows are part of the pipeline as they are at this call, up to 64 MiB. With `reload` a
    Spark DataFrame is computed again by the driver, whenever its clock is in another interval;
    all rows of an epoch are looked up in the same version, which is kept in state.

    A function without arguments is called by each worker process that needs the rows, and
    again every `reload`; its rows must have the columns of its first call, which is made here,
    or of `schema`. If the first call returns a Spark DataFrame, the driver makes all others:
    leave `schema` out for such a function.

    A table that cannot be loaded again is used for three further intervals, with a warning.

    >>> import penstock as pen
    >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-lookup-frame")
    >>> visits = p.read("visits", pen.list_source([{"country": "ch"}, {"country": "xx"}]))
    >>> names = pen.lookup_frame([{"country": "ch", "name": "Switzerland"}])
    >>> visits.join("named", names, on="country", how="left").write("out", out)
    >>> status = p.run_in_process("memory:")
    >>> sorted((row["country"], row["name"]) for row in out.rows())
    [('ch', 'Switzerland'), ('xx', None)]
    """
    every = to_reload_micros(reload)
    given = as_schema(schema)
    if callable(rows) and not _is_spark(rows):
        if given is not None:
            return FrameLookup(_arrow(given), None, rows, every)
        first: Any = _call(rows)
        if not _is_spark(first):
            return FrameLookup(_to_table(first, None).schema, None, rows, every)
        load, table = rows, _to_table(first, None)
    else:
        frame: Any = rows
        load, table = (lambda: frame), _to_table(frame, given)
        if every is not None and not _is_spark(frame):
            raise UserError(
                f"reload={reload!r} is for rows that can be loaded again, and these are a "
                "frame: give a function that returns it, or write it as Parquet and use "
                "pen.lookup_files",
                code=ErrorCode.INVALID_CONFIG,
            )
    check_size(table)
    if every is None:
        return FrameLookup(table.schema, to_ipc(table.to_batches(), table.schema))
    return VersionLookup(table.schema, lambda: _to_table(load(), table.schema), every)


def _is_spark(rows: object) -> bool:
    """Tell whether these are rows of a Spark DataFrame, without importing Spark."""
    return hasattr(rows, "toArrow")


def _call(function: Callable[[], RowsLike]) -> RowsLike:
    name = name_of(function)
    try:
        return function()
    except USER_ERRORS as error:
        failure = to_failure(
            error,
            f"function {name!r} of lookup_frame raised {type(error).__name__}: {error}. It is "
            "called once where the pipeline is built, to learn its columns: or give schema=",
        )
        raise failure from failure.__cause__


def _arrow(schema: StreamSchema | pa.Schema) -> pa.Schema:
    return schema.arrow if isinstance(schema, StreamSchema) else schema


def _to_table(rows: Any, schema: StreamSchema | pa.Schema | None) -> pa.Table:
    """Return rows of any form as a table."""
    if getattr(rows, "isStreaming", False) is True:
        raise UserError(
            "a streaming DataFrame cannot be looked up as a frame: read it as a source, and use "
            "pen.lookup_stream",
            code=ErrorCode.INVALID_CONFIG,
        )
    if _is_spark(rows):
        rows = _collected(rows)
    if schema is not None:
        columns = _arrow(schema)
        return pa.Table.from_batches(to_batches(rows, columns), columns)
    try:
        if isinstance(rows, Mapping):
            return pa.table(dict(rows))
        if isinstance(rows, list | tuple) and rows:
            return pa.Table.from_pylist(list(rows))
        if is_pandas(rows):
            return pa.Table.from_pandas(
                rows, preserve_index=False
            ).replace_schema_metadata()
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"the rows to look up cannot be read: {error}. Give a frame, columns by name or a "
            "list of dictionaries, or their schema=",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
    converted = rows.to_arrow() if hasattr(rows, "to_arrow") else rows
    if isinstance(converted, pa.RecordBatch):
        converted = pa.Table.from_batches([converted])
    if not isinstance(converted, pa.Table):
        raise UserError(
            f"{rows!r:.80} are no rows to look up: give a Polars, pandas or Spark DataFrame, an "
            "Arrow table, columns by name or a list of dictionaries, and schema= if it is empty",
            code=ErrorCode.INVALID_CONFIG,
        )
    return converted


def _collected(frame: Any) -> Any:
    """Return the rows of a Spark DataFrame as Arrow, as they are at this call."""
    try:
        if type(frame).__module__.startswith("pyspark.sql.classic"):
            from penstock.runtime.spark.frame_source import compute_again

            return compute_again(frame)
        return frame.toArrow()
    except USER_ERRORS as error:
        failure = to_failure(
            error,
            f"the DataFrame cannot be computed: {type(error).__name__}: {error}",
        )
        raise failure from failure.__cause__


@dataclass(frozen=True, slots=True)
class FrameLookup(Lookup):
    """Rows to look up. Made by `lookup_frame`."""

    columns: pa.Schema
    rows: bytes | None
    function: Callable[[], RowsLike] | None = None
    reload_micros: int | None = None

    @property
    @override
    def schema(self) -> StreamSchema:
        return StreamSchema(self.columns)

    @override
    def config(self, common: Mapping[str, Any]) -> LookupConfig:
        function = None if self.function is None else pickle_function(self.function)
        return FrameLookupConfig(
            **common, rows=self.rows, function=function, reload_micros=self.reload_micros
        )


@dataclass(frozen=True, slots=True)
class VersionLookup:
    """Rows that the driver loads again and again. Made by `lookup_frame`."""

    columns: pa.Schema
    load: Callable[[], RowsLike]
    reload_micros: int
    shown_source: ClassVar[str] = "a Spark DataFrame"

    @property
    def schema(self) -> StreamSchema:
        """The columns of its rows."""
        return StreamSchema(self.columns)

    def place(self, builder: GraphBuilder, join: OperatorId) -> Port:
        """Add the source of its versions; return where every subtask gets them."""
        spec = VersionSourceConfig(
            join,
            keep_loader(self.load),
            self.schema.to_bytes(),
            self.reload_micros,
            self.shown_source,
        ).to_operator_spec()
        source = builder.add_source(
            f"{join}-rows", spec, event_time=None, watermark=None, parallelism=1
        )
        return source.sent(Exchange.BROADCAST)

    def config(self, common: Mapping[str, Any]) -> LookupConfig:
        """Return the config of the operator, given what all of them have in common."""
        return VersionLookupConfig(
            **common, shown_source=self.shown_source, reload_micros=self.reload_micros
        )


def lookup_function(
    function: Callable[[Any], Awaitable[RowsLike]],
    *,
    schema: SchemaLike,
    batch_size: int = 500,
    max_concurrency: int = 8,
    timeout: DurationLike = "30s",
    retries: int = 0,
    cache_rows: int = 100_000,
    cache_ttl: DurationLike = "5m",
) -> "FunctionLookup":
    """Look up rows by asking an `async def` function, in `join`: a service or a database.

    It is called with a Polars frame of up to `batch_size` distinct keys, its columns named as
    the right keys of the join, and returns rows with the columns of `schema`, keys included,
    in any form: none for a key it does not know, several for one that has several. At most
    `max_concurrency` calls wait at a time. One that takes longer than `timeout`, or raises, is
    made again `retries` times; then the job fails. Answers, also that there is no row, are used
    for `cache_ttl`; each subtask remembers at most `cache_rows` keys and rows.

    >>> import penstock as pen
    >>> async def ask(keys):
    ...     return keys.select("id", name=keys["id"].cast(str) + "!")
    >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-lookup-function")
    >>> users = pen.lookup_function(ask, schema={"id": int, "name": str})
    >>> visits = p.read("visits", pen.list_source([{"id": 1}, {"id": 2}, {"id": 1}]))
    >>> visits.join("named", users, on="id").write("out", out)
    >>> status = p.run_in_process("memory:")
    >>> sorted(row["name"] for row in out.rows())
    ['1!', '1!', '2!']
    """
    given = as_schema(schema)
    if given is None:
        raise UserError(
            "lookup_function needs the schema= of the rows that its function returns",
            code=ErrorCode.INVALID_CONFIG,
        )
    limits: dict[str, Any] = {
        "batch_size": batch_size,
        "max_concurrency": max_concurrency,
        "timeout_micros": to_micros(timeout, "timeout"),
        "retries": retries,
        "cache_rows": cache_rows,
        "cache_ttl_micros": to_micros(cache_ttl, "cache_ttl"),
    }
    least = {**dict.fromkeys(limits, 0), "batch_size": 1, "max_concurrency": 1}
    least["timeout_micros"] = 1
    low = [
        f"{name.removesuffix('_micros')} must be at least {least[name]}, it is {value!r:.80}"
        for name, value in limits.items()
        if not (is_whole(value) and value >= least[name])
    ]
    if low:
        raise UserError(
            f"lookup_function cannot be used so: {'; '.join(low)}",
            code=ErrorCode.INVALID_NUMBER,
        )
    return FunctionLookup(_arrow(given), function, limits)


@dataclass(frozen=True, slots=True)
class FunctionLookup(Lookup):
    """A function to ask for rows. Made by `lookup_function`."""

    columns: pa.Schema
    function: Callable[[Any], Awaitable[RowsLike]]
    limits: Mapping[str, Any]

    @property
    @override
    def schema(self) -> StreamSchema:
        return StreamSchema(self.columns)

    @override
    def config(self, common: Mapping[str, Any]) -> LookupConfig:
        right = StreamSchema.from_bytes(common["right"])
        check_groupable(right.arrow, right.key_columns)
        return FunctionLookupConfig(
            **common, **self.limits, function=pickle_function(self.function)
        )


def lookup_stream(
    stream: "Stream", *, key: str | Sequence[str] | None = None
) -> "StreamTable":
    """Look up rows of a small stream that changes, in `join`: its last row per key.

    The stream may be a changelog, whose table is looked up. Of other rows the last ones per
    `key` are, by default the key of the join: by event time, else as they come. Every
    subtask gets all of them and holds the table in memory. Rows are looked up as the table is at
    the end of their epoch; a later change is seen by later rows only.

    >>> import penstock as pen
    >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-lookup-stream")
    >>> rates = p.read("rates", pen.list_source([{"currency": "chf", "rate": 1.1}]))
    >>> orders = p.read("orders", pen.list_source([{"id": 1, "currency": "chf"}]))
    >>> orders.join("rated", pen.lookup_stream(rates), on="currency").write("out", out)
    >>> status = p.run_in_process("memory:")
    >>> out.rows()
    [{'id': 1, 'currency': 'chf', 'rate': 1.1}]
    """
    names = None if key is None else to_names("key", key, where="lookup_stream: ")
    return StreamTable(stream, names)


@dataclass(frozen=True)
class StreamTable:
    """A stream to look up rows in. Made by `lookup_stream`."""

    stream: Any
    key: tuple[str, ...] | None

    @cached_property
    def schema(self) -> StreamSchema:
        """The columns of its rows, without what makes them changes."""
        stream: StreamSchema = self.stream.port.schema
        columns = [
            f for f in stream.arrow if stream.table_key is None or f.name != CHANGE_COLUMN
        ]
        return StreamSchema(pa.schema(columns))

    def changes(self, builder: GraphBuilder, name: str, key: Sequence[str]) -> Port:
        """Return the changes of the table, settled; rows of a stream are made changes of one."""
        port: Port = self.stream.port
        if port.schema.table_key is None:
            rows: Stream = self.stream._stream_at(port)  # noqa: SLF001 (its class is unknown here)
            wanted = self.key or tuple(key)
            if port.schema.time_column is None:
                return rows.from_upserts(f"{name}-table", key=wanted).port
            return rows.to_table(f"{name}-table", key=wanted).port
        problem = ""
        if self.key is not None:
            problem = "it is a changelog, which has a key already: leave key= out"
        elif port.schema.is_bag or not port.schema.table_key:
            problem = (
                "it is a changelog without a key, whose equal rows are counted: aggregate it by "
                "key before, as key_by(…).aggregate(…) does"
            )
        if problem:
            raise UserError(
                f"join {name!r} cannot look rows up in its right side: {problem}",
                code=ErrorCode.INVALID_CONFIG,
                operator=name,
            )
        return builder.settled(port)


def _untimed(port: Port) -> Port:
    """Return the same rows without an event time: what is looked up holds no watermark back."""
    return replace(port, schema=replace(port.schema, time_column=None))


LookupLike: TypeAlias = Lookup | VersionLookup | StreamTable


def refuse_arguments(name: str, given: Mapping[str, object]) -> None:
    """Refuse arguments of `join` that have no meaning for a lookup."""
    extra = [f"{argument}=" for argument, one in given.items() if one is not None]
    if extra:
        raise UserError(
            f"join {name!r} looks rows up, and {', '.join(extra)} is for joins of two streams: "
            "leave it out",
            code=ErrorCode.INVALID_CONFIG,
            operator=name,
        )


def place_lookup(
    builder: GraphBuilder,
    operator: OperatorId,
    left: Port,
    lookup: LookupLike,
    common: Mapping[str, Any],
    *,
    parallelism: int | None,
) -> None:
    """Put a lookup join into the graph; `common` is what the configs of all kinds hold."""
    if common["how"] not in HOWS:
        raise UserError(
            f"join {str(operator)!r} looks rows up, so it can be 'inner' or 'left', not "
            f"{common['how']!r}: what is looked up has no rows of its own to emit",
            code=ErrorCode.INVALID_CONFIG,
            operator=operator,
        )
    inputs = [left]
    config: LookupConfig
    if isinstance(lookup, StreamTable):
        right = StreamSchema.from_bytes(common["right"])
        changes = lookup.changes(builder, operator, right.key_columns)
        columns = [f for f in changes.schema.arrow if f.name != CHANGE_COLUMN]
        stream = StreamSchema(pa.schema(columns)).keyed_by(*right.key_columns)
        common = {**common, "right": stream.to_bytes()}
        config = StreamLookupConfig(**common, table_key=changes.schema.table_key or ())
        inputs.append(_untimed(changes.sent(Exchange.BROADCAST)))
    else:
        config = lookup.config(common)
        if isinstance(lookup, VersionLookup):
            inputs.append(lookup.place(builder, operator))
    check_problems(operator, config.rules().find_problems())
    builder.place(operator, config.to_operator_spec(), inputs, parallelism=parallelism)
