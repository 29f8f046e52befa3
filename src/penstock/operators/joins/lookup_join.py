"""LookupJoin: rows with what a table in memory says about their key, emitted at once.

    stream.join("name", lookup_files("countries/*.parquet", reload="10m"), on="country")

The table is loaded when an epoch has rows, and again when the driver's clock is in another
reload interval. Rows travel as they did: nothing is sent by key, nothing is kept in state. The
event time is that of the left row, and the watermark passes as it is.

A kind of right side is a `Lookup`, which users make, and its `LookupConfig`. Those whose rows are
a table that can be loaded again have a `TableLookupConfig`, and share the operator.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import from_ipc, to_batches
from penstock.core.clock import DurationLike, to_micros
from penstock.core.figures import show_duration
from penstock.core.rows import RowsLike
from penstock.core.schema import StreamSchema
from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    SchemaError,
    UserCodeError,
    UserError,
)
from penstock.graph.logical import UserFunction
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.lookup_cache import TABLES
from penstock.operators.joins.lookup_rows import LookupRows, in_one_batch, in_plain_layouts
from penstock.operators.joins.matching import JoinConfig
from penstock.operators.joins.sides import How, JoinRules, Pick, plain
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured
from penstock.operators.user_functions import to_failure, unpickle_function

HOWS = (How.INNER, How.LEFT)
"""The kinds of lookup joins: what is looked up has no rows of its own to emit."""
_NO_TIMES = np.empty(0, np.int64)


class Lookup(ABC):
    """The right side of a lookup join, as users name it."""

    @property
    @abstractmethod
    def schema(self) -> StreamSchema:
        """The columns that rows are given; this may read a file."""

    @abstractmethod
    def config(self, common: Mapping[str, Any]) -> "LookupConfig":
        """Return the config of the operator, given what all of them have in common."""


def to_reload_micros(reload: DurationLike | None) -> int | None:
    """Return the interval at which a table is loaded again; None for never."""
    if reload is None:
        return None
    micros = to_micros(reload, "reload interval")
    if micros < 1_000:
        raise UserError(
            f"reload is {reload!r}: it must be at least 1ms",
            code=ErrorCode.INVALID_NUMBER,
        )
    return micros


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupConfig(JoinConfig):
    """What the configs of all lookup joins hold."""

    diverts_bad: bool = False

    def shown_kept(self, right: str) -> Mapping[str, str]:
        """Return what `explain` prints about the rows of both sides that are kept."""
        return {"keeps left rows": "not at all", "keeps right rows": right}

    @override
    def rules(self) -> JoinRules:
        left, right = self.sides()
        return JoinRules(
            left,
            right,
            How(self.how),
            self.suffix,
            self.predicate(),
            own=(),
            time_column=left.time_column,
        )


LookupConfigT = TypeVar("LookupConfigT", bound=LookupConfig)


class LookupOperator(Configured[LookupConfigT], ArrowOperator, Generic[LookupConfigT]):
    """What all lookup joins do alike: their schema, and rows with what was found for them."""

    def __init__(self, config: LookupConfigT) -> None:
        super().__init__(config)
        self.rules = config.rules()
        self.left, self.right = self.rules.left, self.rules.right

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return what the rules say, if the input is the one that the join was made for."""
        if not plain(inputs[0]).arrow.equals(self.left.arrow):
            raise UserError(
                "the left side of the join is another stream than it was made for",
                code=ErrorCode.INVALID_GRAPH,
            )
        return self.rules.output

    def to_left(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the left side in plain layouts."""
        return in_plain_layouts(batch, self.left.arrow)

    def keys_of(self, left: pa.RecordBatch) -> list[Any]:
        """Return the columns of left rows that are looked for."""
        return [left.column(name) for name in self.left.key_columns]

    def emit(
        self,
        left: pa.RecordBatch,
        tables: Sequence[LookupRows],
        collector: ArrowCollector,
    ) -> None:
        """Emit left rows with what several tables say about their keys, each key in one of them."""
        matched = np.zeros(left.num_rows, np.bool_)
        keys = self.keys_of(left)
        every = np.arange(left.num_rows)
        for table in tables:
            for numbers, places in table.partners_of(keys):
                is_whole = len(numbers) == len(every) and bool((numbers == every).all())
                own = Pick(left, _NO_TIMES, numbers, is_whole=is_whole)
                found = Pick(table.rows, _NO_TIMES, places)
                matches = self.rules.are_matches(own, found, {})
                if matches is not None:
                    own, found = own.where(matches), found.where(matches)
                matched[own.places] = True
                if len(own.places):
                    collector.collect(self.rules.rows_of(own, found, {}))
        if self.rules.how is How.LEFT and not matched.all():
            alone = Pick(left, _NO_TIMES, np.flatnonzero(~matched))
            collector.collect(self.rules.rows_of(alone, None, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLookupConfig(LookupConfig):
    """The config of a lookup whose rows are a table that can be loaded again at any time."""

    reload_micros: int | None = None
    """The interval after which the table is loaded again; None for never."""

    @property
    @abstractmethod
    def source(self) -> Hashable:
        """What the table is loaded from: tables of equal sources are loaded once."""

    @abstractmethod
    def load(self) -> RowsLike:
        """Load the rows; this may take a while."""

    @abstractmethod
    def shown_source(self) -> str:
        """Return what is looked up, for people to read."""

    def version_at(self, micros: int) -> int:
        """Return which version of the table an epoch at that processing time uses."""
        return 0 if self.reload_micros is None else micros // self.reload_micros

    @override
    def shown(self) -> Mapping[str, str]:
        reload = self.reload_micros
        often = "never" if reload is None else f"every {show_duration(reload)}"
        shown = {**self.shown_keys(), "looks up": self.shown_source(), "reload": often}
        return {**shown, **self.shown_kept("in memory, not in state")}


class LookupJoin(LookupOperator[TableLookupConfig]):
    """Joins rows with a table that the process has in memory."""

    def __init__(self, config: TableLookupConfig) -> None:
        super().__init__(config)
        self._version: int | None = None
        self._table: LookupRows | None = None

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self.emit(self.to_left(batch), [self._table_at(ctx)], collector)

    def _table_at(self, ctx: OperatorContext) -> LookupRows:
        version = self.config.version_at(ctx.processing_time_micros)
        if self._table is None or version != self._version:
            name = f"lookup {ctx.task.operator!r} ({self.config.shown_source()})"
            source = self.config.source, self.right.to_bytes()
            try:
                self._table = TABLES.get(source, version, self._load, name)
            except PenstockError as error:
                raise not_loaded(error, name, ctx.task.operator) from error
            self._version = version
        return self._table

    def _load(self) -> LookupRows:
        schema = self.right.arrow
        try:
            batches = to_batches(self.config.load(), schema)
        except SchemaError as error:
            raise SchemaError(
                f"its rows are not those it was made for: {error.message}"
            ) from error
        return LookupRows(in_one_batch(batches, schema), self.right.key_columns)


def not_loaded(error: PenstockError, name: str, operator: str) -> PenstockError:
    """Return the error for a table that cannot be loaded: a mistake, or something to try again."""
    message = f"{name} cannot be loaded: {error.message}"
    if isinstance(error, UserError | UserCodeError):
        return type(error)(message, code=error.code, operator=operator)
    return ExternalError(message, operator=operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLookupConfig(TableLookupConfig):
    """The config of a lookup in rows that the graph holds, or that a function returns."""

    kind: ClassVar[str] = "lookup_frame"

    rows: bytes | None
    """The rows as an Arrow IPC stream."""
    function: UserFunction | None = None
    """What returns the rows, in the processes that need them."""

    @property
    @override
    def source(self) -> Hashable:
        data = self.rows if self.function is None else self.function.pickled
        return self.kind, hashlib.sha256(data or b"").digest()

    @override
    def load(self) -> RowsLike:
        if self.function is None:
            return from_ipc(self.rows or b"")
        try:
            rows = unpickle_function(self.function)()
        except Exception as error:  # noqa: BLE001 (the boundary to user code)
            failure = to_failure(
                error,
                f"its function {self.function.name!r} raised {type(error).__name__}: {error}",
                note=f"in {self.function.name!r}, which returns what is looked up",
            )
            raise failure from failure.__cause__
        if hasattr(rows, "toArrow"):
            raise UserError(
                f"its function {self.function.name!r} returns a Spark DataFrame, which only the "
                "driver computes: leave schema= of lookup_frame out, then it is asked there",
                code=ErrorCode.INVALID_CONFIG,
            )
        return rows

    @override
    def shown_source(self) -> str:
        if self.function is not None:
            return f"rows of {self.function.name}()"
        return f"{from_ipc(self.rows or b'').num_rows} rows"
