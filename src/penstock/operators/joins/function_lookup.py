"""FunctionLookup: rows with what an async function says about their key.

The function is called with the distinct keys of a batch that are not in the cache, some hundred
at a time, and returns the rows of these keys. Several calls of a batch wait at the same time.
A batch is emitted when all are answered, so nothing outlives its epoch, and nothing is kept
in state. The cache is in memory, for each subtask; it forgets by the driver's clock and by size.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import relay, stored_type
from penstock.core.batch import empty_batch, to_batches
from penstock.core.figures import show_duration
from penstock.errors import ErrorCode, ExternalError, PenstockError, SchemaError, UserError
from penstock.graph.logical import UserFunction
from penstock.operators.aggregates.frames import columns_to_frame
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.frames import polars_type
from penstock.operators.joins.lookup_join import LookupConfig, LookupOperator
from penstock.operators.joins.lookup_rows import LookupRows, in_one_batch
from penstock.operators.joins.matching import without_nulls
from penstock.operators.udfs.async_calls import AsyncCall, CallPool, CallTimeoutError
from penstock.operators.udfs.functions import is_async
from penstock.operators.user_functions import to_failure, unpickle_function
from penstock.state.tables.sorted_rows import Positions, take_rows

_PLACE = "_penstock_place"
_SHOWN_KEYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionLookupConfig(LookupConfig):
    """The config of kind "lookup_function"."""

    kind: ClassVar[str] = "lookup_function"

    function: UserFunction
    batch_size: int = 500
    """The most keys of a call."""
    max_concurrency: int = 8
    """How many calls a subtask has under way at a time."""
    timeout_micros: int = 30_000_000
    retries: int = 0
    retry_delay_micros: int = 100_000
    cache_rows: int = 100_000
    """The most keys and rows that are remembered; 0 for none."""
    cache_ttl_micros: int = 300_000_000
    """How long an answer is used."""

    @property
    def is_ordered(self) -> bool:
        """Whether calls are answered in order: they are waited for together."""
        return False

    @override
    def shown(self) -> Mapping[str, str]:
        cache = "none"
        if self.cache_rows and self.cache_ttl_micros:
            cache = f"{self.cache_rows} rows for {show_duration(self.cache_ttl_micros)}"
        return {
            **self.shown_keys(),
            "looks up": f"{self.function.name}(keys)",
            "batch_size": str(self.batch_size),
            "max_concurrency": str(self.max_concurrency),
            "timeout": show_duration(self.timeout_micros),
            "cache": cache,
            **self.shown_kept("in the cache, not in state"),
        }


class AnswerCache:
    """Keys that were asked for, and the rows of their answers, in the order they were asked."""

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], limit: int, ttl: int
    ) -> None:
        self._keys, self._limit, self._ttl = list(keys), limit, ttl
        self._asked = empty_batch(pa.schema([schema.field(name) for name in keys]))
        self._times = np.empty(0, np.int64)
        """When each key was asked for; ascending."""
        self._rows = empty_batch(schema)
        self._owners = np.empty(0, np.int64)
        """The number of the key that each row belongs to."""
        self._index()

    def __len__(self) -> int:
        return self._asked.num_rows + self._rows.num_rows

    def expire(self, micros: int) -> None:
        """Forget the answers that are too old at some instant."""
        first = int(np.searchsorted(self._times, micros - self._ttl, "right"))
        if first:
            self._forget(first)
            self._index()

    def add(self, asked: pa.RecordBatch, rows: LookupRows, micros: int) -> None:
        """Remember answers; the oldest ones make room for them."""
        found = [
            (numbers, places) for numbers, places in rows.partners_of(list(asked.columns))
        ]
        owners = np.concatenate([np.empty(0, np.int64), *(n for n, _ in found)])
        places = np.concatenate([np.empty(0, np.int64), *(p for _, p in found)])
        answers = take_rows(rows.rows, places)
        owners = owners + self._asked.num_rows
        self._rows = in_one_batch([self._rows, answers], self._rows.schema)
        self._owners = np.concatenate([self._owners, owners])
        self._asked = in_one_batch([self._asked, asked], self._asked.schema)
        latest = max(micros, int(self._times[-1]) if len(self._times) else micros)
        self._times = np.append(self._times, np.full(asked.num_rows, latest))
        sizes = 1 + np.bincount(self._owners, minlength=self._asked.num_rows)
        behind = np.cumsum(sizes[::-1])[::-1]
        self._forget(int((behind > self._limit).sum()))
        self._index()

    def _forget(self, count: int) -> None:
        """Forget the first keys and their rows."""
        if count:
            self._asked, self._times = self._asked.slice(count), self._times[count:]
            kept = self._owners >= count
            self._rows = self._rows.filter(pa.array(kept))
            self._owners = self._owners[kept] - count

    def _index(self) -> None:
        self.asked = LookupRows(self._asked, self._keys)
        """The keys whose answers are known."""
        self.rows = LookupRows(self._rows, self._keys)
        """The rows of the answers."""


class FunctionLookup(LookupOperator[FunctionLookupConfig]):
    """Calls a function for the keys of its subtask's rows, and remembers the answers."""

    def __init__(self, config: FunctionLookupConfig) -> None:
        super().__init__(config)
        self._function = _load(config)
        self._pool = CallPool(self._function, config)
        keys = self.right.key_columns
        self._asked_schema = pa.schema([self.right.arrow.field(name) for name in keys])
        self._cache = AnswerCache(
            self.right.arrow, keys, config.cache_rows, config.cache_ttl_micros
        )

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Ask for the keys that are not known, wait for all answers, and emit the rows."""
        left = self.to_left(batch)
        cache, micros = self._cache, ctx.processing_time_micros
        cache.expire(micros)
        known = cache.rows
        missing = self._missing(left)
        fresh: list[LookupRows] = []
        if missing.num_rows:
            ctx.count("keys_asked", missing.num_rows)
            answers = self._ask(missing, ctx.task.operator)
            fresh = [LookupRows(answers, self.right.key_columns)]
            cache.add(missing, fresh[0], micros)
        self.emit(left, [known, *fresh], collector)

    @override
    def release(self) -> None:
        self._pool.close()

    def _missing(self, left: pa.RecordBatch) -> pa.RecordBatch:
        """Return the distinct keys of rows whose answers are not known."""
        arrays: list[Any] = [
            relay(column, field.type)
            for column, field in zip(self.keys_of(left), self._asked_schema, strict=True)
        ]
        keys = pa.RecordBatch.from_arrays(arrays, schema=self._asked_schema)
        has_key = without_nulls(arrays)
        if has_key is not None:
            keys = keys.filter(pa.array(has_key))
        if not keys.num_rows:
            return keys
        frame = columns_to_frame([keys], keys.schema.names).with_row_index(_PLACE)
        first = frame.group_by(keys.schema.names, maintain_order=True).agg(
            pl.col(_PLACE).first()
        )
        places: Positions = first.get_column(_PLACE).to_numpy().astype(np.int64)
        distinct = take_rows(keys, places)
        is_known = self._cache.asked.has(list(distinct.columns))
        return distinct.filter(pa.array(~is_known))

    def _ask(self, keys: pa.RecordBatch, operator: str) -> pa.RecordBatch:
        """Return the rows of some keys, as the function tells them."""
        size = self.config.batch_size
        parts = [keys.slice(start, size) for start in range(0, keys.num_rows, size)]
        frames = [columns_to_frame([part], part.schema.names) for part in parts]
        calls = [AsyncCall(number, (frame,)) for number, frame in enumerate(frames)]
        self._pool.submit(calls)
        while not self._pool.wait_idle(None):
            self._check(operator)
        self._check(operator)
        rows: list[pa.RecordBatch] = []
        for call, part in zip(calls, parts, strict=True):
            rows += self._conform(call.value, part, operator)
        return in_one_batch(rows, self.right.arrow)

    def _check(self, operator: str) -> None:
        """Raise the first error of the calls that were answered, and end all others."""
        for call in self._pool.take_finished():
            if call.error is not None:
                self._pool.cancel_all()
                raise self._failure(call, operator) from call.error

    def _failure(self, call: AsyncCall, operator: str) -> PenstockError:
        error, name = call.error, self.config.function.name
        shown = call.arguments[0].head(_SHOWN_KEYS).rows()
        who = f"function {name!r} of lookup {operator!r}"
        asked = f"when asked for {call.arguments[0].height} keys such as {shown!r:.200}"
        if isinstance(error, CallTimeoutError):
            return ExternalError(
                f"{who} gave {error} {asked}, {call.failures} times. See to the service that "
                "it calls, raise timeout or retries, or lower batch_size",
                code=ErrorCode.UDF_TIMED_OUT,
                operator=operator,
            )
        return to_failure(
            error or RuntimeError("no answer"),
            f"{who} raised {type(error).__name__}: {error} {asked}",
            note=f"{who} raised it {asked}",
            operator=operator,
        )

    def _conform(
        self, answer: Any, asked: pa.RecordBatch, operator: str
    ) -> list[pa.RecordBatch]:
        """Return the rows of an answer in the declared types, or refuse what are none."""
        name, keys = self.config.function.name, self.right.key_columns
        problem = ""
        try:
            if isinstance(answer, pl.DataFrame):
                answer = _in_declared_types(answer, self.right.arrow)
            batches = to_batches(answer, self.right.arrow)
        except SchemaError as error:
            batches, problem = [], error.message
        known = LookupRows(asked, keys)
        for batch in batches:
            strange = ~known.has([batch.column(key) for key in keys])
            if strange.any():
                row = batch.filter(pa.array(strange)).select(list(keys)).slice(0, 1)
                problem = (
                    f"rows of keys that were not asked for, such as {row.to_pylist()[0]}"
                )
        if problem:
            raise UserError(
                f"function {name!r} of lookup {operator!r} returned what are no rows of its "
                f"keys: {problem}. It gets a frame of keys and returns rows with the columns "
                f"{', '.join(self.right.arrow.names)}: none for a key that it does not know",
                code=ErrorCode.UDF_INVALID,
                operator=operator,
            )
        return batches


def _in_declared_types(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return a frame whose columns have the declared types that Polars reads as theirs.

    Keys are given as a frame, and Polars has no seconds, for example. What a function gives back
    as it got it is right.
    """
    columns: dict[str, Any] = {}
    for series in frame.get_columns():
        place = schema.get_field_index(series.name)
        kind = None if place < 0 else stored_type(schema.field(place).type)
        columns[series.name] = series.rechunk().to_arrow()
        if kind is not None and polars_type(kind) == series.dtype:
            columns[series.name] = _cast(columns[series.name], kind)
    return pa.table(columns)


def _cast(array: Any, kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array.cast(kind.storage_type))
    return array if array.type.equals(kind) else array.cast(kind)


def _load(config: FunctionLookupConfig) -> Callable[..., Awaitable[Any]]:
    given: Any = unpickle_function(config.function)
    if not callable(given) or not is_async(given):
        raise UserError(
            f"{config.function.name!r} cannot be looked up in: it is no async function. Write "
            "`async def`; a function that returns a whole table goes into pen.lookup_frame",
            code=ErrorCode.UDF_INVALID,
        )
    function: Callable[..., Awaitable[Any]] = given
    return function
