"""RankingSteps: the steps of a stream that keep the first rows of each key, or one of equals.

| step | emits |
|---|---|
| `top` | a changelog of the first n rows of each key |
| `window(…).top` | the first n rows of each key and window, when it closes |
| `deduplicate(keep="first")` | the first row of each key to come, at once |
| `deduplicate(keep="earliest")` | the first row of each key by event time, when the watermark has passed it |
| `deduplicate(keep="last")` | a changelog of the last row of each key |
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import polars as pl

from penstock.api.gathering import step
from penstock.api.graph_builder import BrokenPort, GraphBuilder, Port
from penstock.api.windowing import FOREVER, WindowStep
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.graph.logical import Exchange
from penstock.operators.aggregates.frames import ALL_ROWS, KEY_OF_ALL_ROWS
from penstock.operators.changelogs.latest import latest_spec
from penstock.operators.expressions import with_columns_spec
from penstock.operators.frames import to_names
from penstock.operators.ranking.changelog_top import ChangelogTopConfig
from penstock.operators.ranking.deduplicate import deduplicate_spec
from penstock.operators.ranking.order import check_count, to_rank_order
from penstock.operators.ranking.top import TopConfig
from penstock.operators.ranking.window_top import ROWS, FirstRows, RankedRowsConfig
from penstock.operators.stateless import check_columns
from penstock.operators.updating.lifetimes import Expiry

if TYPE_CHECKING:
    from penstock.api.stream import Stream

Names: TypeAlias = str | Sequence[str]
Keep: TypeAlias = Literal["first", "earliest", "last"]
_KEEPS = ("first", "earliest", "last")
_log = logging.getLogger(__name__)


def _broken(stream: Any) -> Any:
    return stream._stream_at(BrokenPort())  # noqa: SLF001 (the stream's own class is unknown here)


class RankingSteps:
    """The part of `Stream` and `KeyedStream` that ranks rows and drops duplicates."""

    builder: GraphBuilder
    port: Port
    _stream_at: "Callable[[Port], Stream]"
    """Returns the stream of a port; `Stream` has it."""

    @step(_broken, is_named=True)
    def top(
        self,
        name: str,
        n: int,
        *,
        by: Names,
        per: Names | None = None,
        descending: bool | Sequence[bool] = True,
        rank: str | None = None,
        parallelism: int | None = None,
    ) -> "Stream":
        """Keep the first n rows of each key by some columns, and emit how they change.

        The greatest values of `by` come first, or with `descending=False` the least; a null is
        below all values. `descending` may be a list with one for each column. Rows that are
        equal by these columns are ordered by their others, equal rows are counted. `per` are
        the columns of the key; without it the rows of all keys are ranked together, and behind
        `key_by` it is the key. With `rank` the output has a column of that name, which counts
        from 1, and the table's key is the key and the rank.

        Of an append-only stream n rows are kept per key, of a changelog all rows.

        >>> import penstock as pen
        >>> bids = [{"auction": 1, "price": price} for price in (10, 30, 20)]
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-top")
        >>> best = p.read("bids", pen.list_source(bids)).top(
        ...     "best", 2, by="price", per="auction", rank="rank"
        ... )
        >>> best.write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> [(row["change"], row["rank"], row["price"]) for row in out.rows()]
        [('insert', 1, 30), ('insert', 2, 20)]
        """
        builder, shown = self.builder, f"top {name!r}"
        operator = builder.claim(name)
        count = 1
        with builder.problems.noting():
            count = check_count(shown, n)
        rows = _sent_by(builder, operator, self.port, _keys_of(shown, self.port, per))
        stream = rows.schema
        order = to_rank_order(shown, stream, by, descending=descending)
        _check_rank(shown, stream, rank)
        config = ChangelogTopConfig if stream.is_changelog else TopConfig
        spec = config(stream.to_bytes(), count, order, rank).to_operator_spec()
        if parallelism is None and stream.key_columns == (ALL_ROWS,):
            parallelism = 1
        builder.place(operator, spec, [rows], parallelism=parallelism)
        return self._stream_at(builder.port(operator))

    @step(_broken, is_named=True)
    def deduplicate(
        self,
        name: str,
        on: Names | None = None,
        *,
        keep: Keep = "first",
        ttl: DurationLike | None = None,
        parallelism: int | None = None,
    ) -> "Stream":
        """Keep one row of those that are equal in the columns `on`, or in the key of `key_by`.

        With `keep="first"` the first row of a key to come is emitted at once. Keys are
        remembered for `ttl`: by event time if the stream has it, else by processing time. A row
        `ttl` or more behind the one that was emitted is a first one again; a row that comes later
        though its event time is earlier is a duplicate. By event time, late rows of keys that are
        not remembered go to the side output `LATE`. `ttl="forever"` never forgets a key: without
        any the same is done, with a warning, because state grows with the keys.

        With `keep="earliest"` it is the first row by event time, of several the least by its
        columns, emitted when the watermark has passed it: rows wait for that in state. The result
        is that of the rows alone, in whatever order they come from however many splits. Late rows
        go to the side output `LATE`.

        With `keep="last"` the output is a changelog of the row with the latest event time, as
        that of `to_table`.

        >>> import penstock as pen
        >>> clicks = [
        ...     {"id": 7, "page": "a"},
        ...     {"id": 7, "page": "a"},
        ...     {"id": 8, "page": "b"},
        ... ]
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-deduplicate")
        >>> rows = p.read("clicks", pen.list_source(clicks))
        >>> rows.deduplicate("once", "id", ttl="1h").write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> sorted(row["id"] for row in out.rows())
        [7, 8]
        """
        builder, shown = self.builder, f"deduplicate {name!r}"
        self.port.check_append_only("deduplicate")
        operator = builder.claim(name)
        keys = _keys_of(shown, self.port, on, option="on")
        if not keys:
            raise UserError(
                f"{shown} needs columns that tell duplicates from others: name them as on=",
                code=ErrorCode.INVALID_CONFIG,
                operator=name,
            )
        _check_keep(shown, keep, ttl, self.port.schema)
        rows = self.port.sent_by(keys)
        if keep != "last":
            expiry = _expiry_of(shown, ttl, rows.schema)
            spec = deduplicate_spec(rows.schema, expiry, keeps_earliest=keep == "earliest")
        else:
            spec = latest_spec(rows.schema, rows.schema.time_column)
        builder.place(operator, spec, [rows], parallelism=parallelism)
        return self._stream_at(builder.port(operator))


class WindowRankingSteps:
    """The part of `WindowedStream` that ranks the rows of windows."""

    builder: GraphBuilder
    _windows: WindowStep | None
    _stream_at: "Callable[..., Stream]"
    """Returns the stream of a port and of its side outputs; `WindowedStream` has it."""

    @step(_broken)
    def top(
        self,
        n: int,
        *,
        by: Names,
        descending: bool | Sequence[bool] = True,
        rank: str | None = None,
    ) -> "Stream":
        """Emit the first n rows of each key and window when it closes; see `Stream.top`.

        A row has the key columns, those of the window, the rank if it is asked for, and the
        other columns of the ranked row. Its event time is `window_time`. With `allowed_lateness`
        the rows are a changelog.

        >>> import datetime as dt, penstock as pen
        >>> rows = pen.list_source(
        ...     [{"auction": 1, "price": 5, "at": dt.datetime(2024, 1, 1)}]
        ... )
        >>> bids = pen.Pipeline("p").read("bids", rows, event_time="at")
        >>> windows = bids.key_by("auction").window("w", pen.tumbling("10s"))
        >>> windows.top(3, by="price", rank="rank").schema.arrow.names
        ['auction', 'window_start', 'window_end', 'window_time', 'rank', 'price', 'at']
        """
        if self._windows is None:
            return self._stream_at(BrokenPort())
        builder, windows = self.builder, self._windows
        shown, stream = f"top of window {windows.name!r}", windows.rows.schema
        order = to_rank_order(shown, stream, by, descending=descending)
        _check_rank(shown, stream, rank)
        results, sides = windows.add({ROWS: FirstRows(check_count(shown, n), order)})
        spec = RankedRowsConfig(rank).to_operator_spec()
        operator = builder.add_step(f"{windows.name}-top", spec, [results])
        return self._stream_at(builder.port(operator), sides)


def _keys_of(
    shown: str, port: Port, given: Names | None, *, option: str = "per"
) -> tuple[str, ...]:
    """Return the columns that a user names as key, or those of `key_by`."""
    stream = port.schema
    if given is None:
        return stream.key_columns
    if stream.key_columns:
        raise UserError(
            f"{shown} is behind key_by({', '.join(stream.key_columns)}), which says what its key "
            f"is: leave {option}= out, or put it behind the stream itself",
            code=ErrorCode.INVALID_CONFIG,
        )
    keys = to_names(option, given, where=f"{shown}: ")
    check_columns(keys, stream.arrow.names, f"{option}= of {shown}")
    return keys


def _sent_by(
    builder: GraphBuilder, operator: str, rows: Port, keys: tuple[str, ...]
) -> Port:
    """Return rows that travel by key; without one, by a column that all rows share."""
    if keys:
        return rows.sent_by(keys)
    if ALL_ROWS in rows.schema.arrow.names:
        raise SchemaError(
            f"column {ALL_ROWS!r} has the name of a column that ranking of all rows adds: "
            "rename it",
            operator=operator,
        )
    if rows.exchange is Exchange.BROADCAST:
        rows = rows.sent(Exchange.FORWARD)
    key = pl.lit(KEY_OF_ALL_ROWS, pl.Int64).alias(ALL_ROWS)
    step = builder.add_step(f"{operator}-rows", with_columns_spec(key), [rows])
    return builder.port(step).sent_by([ALL_ROWS])


def _check_rank(shown: str, stream: StreamSchema, rank: object) -> None:
    """Refuse a column for the rank that is none, or whose name is taken."""
    if rank is None:
        return
    if not isinstance(rank, str) or not rank:
        raise UserError(
            f"{shown}: rank={rank!r} is no name of a column: write rank='rank'",
            code=ErrorCode.INVALID_CONFIG,
        )
    if rank in stream.arrow.names:
        raise SchemaError(
            f"{shown}: rank={rank!r} is a column of the rows already: give another name",
            column=rank,
        )


def _expiry_of(shown: str, ttl: Any, stream: StreamSchema) -> Expiry | None:
    """Return when keys are forgotten; None for never, with a warning unless it was asked for."""
    if isinstance(ttl, str) and ttl == FOREVER:
        return None
    if ttl is None:
        _log.warning(
            "%s remembers every key for ever, so its state grows without end: give it ttl=, such "
            "as ttl='1h', or ttl='forever' if that is meant",
            shown,
        )
        return None
    return Expiry.of(to_micros(ttl, "ttl"), None, stream)


def _check_keep(shown: str, keep: object, ttl: object, stream: StreamSchema) -> None:
    """Refuse what cannot be kept of equal rows."""
    problem = None
    if not (isinstance(keep, str) and keep in _KEEPS):
        close = did_you_mean(str(keep), _KEEPS)
        problem = f"keep={keep!r:.80}{close}: use 'first', 'earliest' or 'last'"
    elif keep == "last" and not (ttl is None or (isinstance(ttl, str) and ttl == FOREVER)):
        problem = (
            "ttl= goes with keep='first' and 'earliest': the last row of a key is a part of the "
            "table until another one replaces it. key_by(…).aggregate(…, ttl=…) deletes keys"
        )
    elif keep != "first" and stream.time_column is None:
        problem = (
            f"its rows have no event time to tell which one is the {keep}: name their timestamp "
            "column as event_time when reading them"
        )
        if keep == "last":
            problem += ", or use to_table(…, order_by=…)"
    if problem is not None:
        raise UserError(f"{shown}: {problem}", code=ErrorCode.INVALID_CONFIG)
