"""Tables that only the driver can load: a source of their versions, and the join with the last.

    stream.join("rated", pen.lookup_frame(spark.table("rates"), reload="10m"), on="currency")

A Spark DataFrame is computed where its session is. So the driver loads the table while it plans
an epoch, when its clock is in another reload interval, and the plan carries the rows. Every
attempt of the epoch, also one that is retried or runs twice, reads the plan: all see
the same version. A version is a split that is read whole in one epoch and has ended then; its
name is when it was loaded, its offset the digest of its rows. So the checkpoint says which
version an epoch has seen, and a job that is started again within the interval loads nothing.

A table that cannot be loaded fails the job, unless a version is there that is not too old: this is
used on, with a warning, and the next interval tries again. Rows that are the same as before
are not sent again.

A row of the stream is a part of the table: its number, how many there are, rows as Arrow IPC.
Every subtask of the join gets all of them, in the epochs in which the table has changed. They
replace what was there before, and the rows of their epoch are looked up in them, whichever
input came first. The first subtask keeps the parts in a global table, so that a job goes on
with the version that it had.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import to_batches, to_ipc
from penstock.core.clock import DurationLike, new_token
from penstock.core.figures import show_bytes, show_duration
from penstock.core.rows import RowsLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, InternalError, PenstockError, SchemaError, UserError
from penstock.operators.context import OperatorContext, SourceCollector, SourceContext
from penstock.operators.joins.lookup_cache import MOST_STALE_INTERVALS
from penstock.operators.joins.lookup_join import LookupConfig, not_loaded
from penstock.operators.joins.stream_lookup import HeldLookup
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.operators.user_functions import USER_ERRORS, to_failure

_log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""The largest table that travels with plans and graphs, which are sent to every worker."""
_PART_BYTES = 4 << 20
"""About how large a part of a table is."""
PART, PARTS, ROWS = "part", "parts", "rows"
_COLUMNS: dict[str, Any] = {PART: pa.int64(), PARTS: pa.int64(), ROWS: pa.large_binary()}
VERSION_SCHEMA = pa.schema(_COLUMNS)

_LOADERS: dict[str, Callable[[], RowsLike]] = {}
"""What loads tables in this process, by token: it cannot be pickled into a graph."""


def keep_loader(load: Callable[[], RowsLike]) -> str:
    """Let sources of this process find what loads a table, by the token that is returned."""
    token = new_token()
    _LOADERS[token] = load
    return token


@dataclass(frozen=True, slots=True)
class VersionSourceConfig(OperatorConfig):
    """The config of kind "versions"."""

    kind: ClassVar[str] = "versions"

    join: str
    """The step that looks rows up in the table."""
    token: str
    """Names what loads the table, in the process that built the pipeline."""
    rows: bytes
    """The columns of the table, as `StreamSchema.to_bytes` returns them."""
    reload_micros: int
    shown_source: str

    @override
    def shown(self) -> Mapping[str, str]:
        often = f"every {show_duration(self.reload_micros)}, on the driver"
        return {"loads": self.shown_source, "reload": often}

    @property
    def lookup(self) -> str:
        """What messages call it."""
        return f"lookup {self.join!r} ({self.shown_source})"


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of the table."""

    parts: tuple[bytes, ...]
    digest: str

    @classmethod
    def of(cls, rows: RowsLike, schema: pa.Schema) -> "_Version":
        table = pa.Table.from_batches(to_batches(rows, schema), schema)
        check_size(table)
        count = -(-max(table.nbytes, 1) // _PART_BYTES)
        size = max(1, -(-table.num_rows // count))
        starts = range(0, max(table.num_rows, 1), size)
        parts = tuple(
            to_ipc(table.slice(start, size).to_batches(), schema) for start in starts
        )
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return cls(parts, digest.hexdigest())


def check_size(table: pa.Table) -> None:
    """Refuse a table that is too large to travel with graphs and plans."""
    if table.nbytes > MOST_BYTES:
        raise UserError(
            f"a frame of {show_bytes(table.nbytes)} is too large to be part of a pipeline, at "
            f"most {show_bytes(MOST_BYTES)}: write it as Parquet and use pen.lookup_files",
            code=ErrorCode.INVALID_CONFIG,
        )


class VersionSource(Configured[VersionSourceConfig], SourceOperator):
    """Loads a table on the driver, and emits each version of it that is another than before."""

    def __init__(self, config: VersionSourceConfig) -> None:
        super().__init__(config)
        self._fresh: _Version | None = None
        """The version that was loaded last, until an epoch has read it."""
        self._tried: int | None = None
        """The reload interval of the last attempt to load the table."""
        self._loaded: int | None = None
        """The reload interval of the last attempt that did not fail."""

    @override
    def output_schema(self) -> StreamSchema:
        return StreamSchema(VERSION_SCHEMA)

    @override
    def ends_with_others(self) -> bool:
        """Return True: nobody looks anything up when no other source has rows."""
        return True

    @override
    def poll_interval(self) -> DurationLike:
        return f"{self.config.reload_micros}us"

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Load the table if it is due, and let the epoch read it if it has changed."""
        newest = max(known, key=int, default=None)
        older = tuple(sorted(name for name in known if name != newest))
        kept = None if newest is None else int(newest) // self.config.reload_micros
        interval = now_micros // self.config.reload_micros
        if interval not in (kept, self._tried):
            self._try_to_load(interval, kept)
        fresh = self._fresh
        if (
            newest is not None
            and fresh is not None
            and fresh.digest == known[newest].offset
        ):
            self._fresh = fresh = None  # it was read: nobody needs its rows here
        if fresh is None:
            return SourcePlan((), is_complete=False, forgotten=older)
        split = SplitPlan(str(now_micros), fresh.digest, fresh.parts)
        return SourcePlan((split,), is_complete=False, forgotten=older)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Emit the parts that the plan carries."""
        for split in ctx.splits:
            parts: tuple[bytes, ...] = split.end
            for number, part in enumerate(parts):
                row = {PART: number, PARTS: len(parts), ROWS: part}
                batch = pa.RecordBatch.from_pylist([row], schema=VERSION_SCHEMA)
                collector.collect(batch, split=split.name)
            ctx.advance(split.name, split.start)
            ctx.end_split(split.name)

    def _try_to_load(self, interval: int, kept: int | None) -> None:
        """Load the table; if that fails, the last version is used on if it is not too old."""
        try:
            self._fresh = self._load()
        except PenstockError as error:
            good = [one for one in (kept, self._loaded) if one is not None]
            age = interval - max(good, default=interval)
            if not 0 < age <= MOST_STALE_INTERVALS:
                raise not_loaded(error, self.config.lookup, self.config.join) from error
            _log.warning(
                "%s is used as it was loaded %d reload intervals ago, for at most %d: %s",
                self.config.lookup,
                age,
                MOST_STALE_INTERVALS,
                error.message,
            )
        else:
            self._loaded = interval
        self._tried = interval

    def _load(self) -> _Version:
        load = _LOADERS.get(self.config.token)
        if load is None:
            raise UserError(
                "what loads it is not known in this process: run the pipeline in the process "
                "that builds it",
                code=ErrorCode.INVALID_CONFIG,
            )
        schema = StreamSchema.from_bytes(self.config.rows).arrow
        try:
            return _Version.of(load(), schema)
        except SchemaError as error:
            raise SchemaError(
                f"its rows are not those it was made for: {error.message}"
            ) from error
        except USER_ERRORS as error:
            failure = to_failure(error, f"{type(error).__name__}: {error}")
            raise failure from failure.__cause__


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLookupConfig(LookupConfig):
    """The config of kind "lookup_version"."""

    kind: ClassVar[str] = "lookup_version"

    shown_source: str
    reload_micros: int

    @override
    def shown(self) -> Mapping[str, str]:
        return {
            **self.shown_keys(),
            "looks up": self.shown_source,
            "reload": f"every {show_duration(self.reload_micros)}",
            **self.shown_kept("those of the last version"),
        }


class VersionLookup(HeldLookup[VersionLookupConfig]):
    """Holds the last version of a table, and joins the rows of each epoch with it."""

    table_name = "version"

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        if not inputs[1].arrow.equals(VERSION_SCHEMA):
            raise UserError(
                "the right side of the join is no table that its driver loads",
                code=ErrorCode.INVALID_GRAPH,
            )
        return super().output_schema(inputs)

    @override
    def apply(self, changes: Sequence[pa.RecordBatch], ctx: OperatorContext) -> None:
        """Replace the table by the parts of its next version, and keep these."""
        table = pa.Table.from_batches(changes).sort_by(PART)
        parts: list[Any] = table.column(ROWS).to_pylist()
        if table.column(PARTS).to_pylist() != [len(parts)] * len(parts):
            raise InternalError("an epoch brought some parts of a table that is looked up")
        self.hold(parts, ctx)
        if 0 not in ctx.task.key_range:
            return
        view = self.view(ctx)
        for number in [number for number, _ in view.items() if number >= len(parts)]:
            view.remove(number)
        for number, part in enumerate(parts):
            view.insert(number, part)
