"""The verb `join`: which kind of join its arguments mean, and the operator of that kind.

    left.join("name", right, on="auction", how="left", within=("-5m", "10m"))

| argument | join | operator |
|---|---|---|
| `within=(lower, upper)` | rows whose event times are within bounds of each other | `interval_join` |
| `window=pen.tumbling(…)`, `pen.sliding(…)` | rows in the same window | `window_join` |
| `window=pen.session(…)` | rows in the same session | `session_join` |
| `window=pen.same_window()` | aggregates over the same window | `interval_join` |
| none of these | all rows so far, tables as they are | `table_join` |
| a lookup on the right, such as `pen.lookup_files(…)` | rows and what is known of their key | see `lookups` |

`add_join` chooses by these arguments. Rows of both sides are sent by their keys; the left side is
input 0 of the operator, the right side input 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.api.gathering import step
from penstock.api.graph_builder import BrokenPort, GraphBuilder, Port
from penstock.api.lookups import LookupLike, StreamTable, place_lookup, refuse_arguments
from penstock.api.table_joining import Ttl, table_join_spec
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.core.spellings import OnBad, diverts_bad
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec
from penstock.operators.aggregates.frames import check_groupable
from penstock.operators.frames import to_names
from penstock.operators.joins.interval_join import IntervalJoinConfig, find_bound_problems
from penstock.operators.joins.matching import JoinConfig
from penstock.operators.joins.session_join import SessionJoinConfig
from penstock.operators.joins.sides import (
    SIDES,
    check_problems,
    find_key_problems,
    to_how,
)
from penstock.operators.joins.table_output import without_change
from penstock.operators.joins.window_join import WindowJoinConfig
from penstock.operators.windows.aggregation import WINDOW_END, WINDOW_START, WINDOW_TIME
from penstock.operators.windows.definitions import (
    SessionWindow,
    Window,
    join_window_to_micros,
)
from penstock.operators.windows.session_merging import WAKES_AT

if TYPE_CHECKING:
    from penstock.api.stream import Stream

JoinHow: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
Within: TypeAlias = tuple[DurationLike, DurationLike]
"""How far the event time of a right row may be from that of a left row: lower, upper."""
Names: TypeAlias = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class SameWindow:
    """The windows that rows of both sides carry already."""

    def __str__(self) -> str:
        return "same_window()"


def same_window() -> SameWindow:
    """Join aggregates of two streams over equal windows, by window and key.

    >>> import penstock as pen
    >>> str(pen.same_window())
    'same_window()'
    """
    return SameWindow()


JoinWindow: TypeAlias = Window | SameWindow


def _broken(stream: Any) -> Any:
    return stream._stream_at(BrokenPort())  # noqa: SLF001 (the stream's own class is unknown here)


class JoinSteps:
    """The part of `Stream` and `KeyedStream` that joins them with another stream."""

    builder: GraphBuilder
    port: Port
    _stream_at: "Callable[[Port], Stream]"
    """Returns the stream of a port; `Stream` has it."""

    @step(_broken, is_named=True)
    def join(
        self,
        name: str,
        right: "JoinSteps | LookupLike",
        *,
        on: Names | None = None,
        left_on: Names | None = None,
        right_on: Names | None = None,
        how: JoinHow = "inner",
        window: JoinWindow | None = None,
        within: Within | None = None,
        where: pl.Expr | None = None,
        suffix: str = "_right",
        ttl: Ttl | None = None,
        on_bad: OnBad = "fail",
        parallelism: int | None = None,
    ) -> "Stream":
        """Join the rows of this stream, the left side, with those of another one.

        With `within=(lower, upper)` rows match whose event times are close:
        `left + lower <= right <= left + upper`. Pairs are emitted at once, rows without a match
        when the watermark says that none can come. With `window` rows match that are in the
        same window; everything is emitted when the window closes. `pen.same_window()` joins
        aggregates over equal windows. Without either, all rows of both sides are joined, as
        tables are: what is emitted is a changelog, unless two append-only streams are
        joined by `how="inner"`. `ttl` such as "1d" or ("1d", None) says for how long rows of
        both sides, or of each, are kept.
        A lookup on the right, such as `pen.lookup_files(…)`, is asked for the key of each row at
        once.

        Keys are the columns `on`, or `left_on` and `right_on`, or those of `key_by`; a null
        matches nothing. `where` is a Polars expression that pairs must fulfil besides. Columns
        of the right side whose names are taken get `suffix`. The output has the event time
        `event_time`, the later of both, or `window_time`. Late rows are in the side outputs
        `LATE` and `LATE_RIGHT`, diverted bad ones in `BAD` and `BAD_RIGHT`.

        >>> import datetime as dt, penstock as pen
        >>> minute = lambda m: dt.datetime(2024, 1, 1, 12, m)
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-join")
        >>> orders = p.read(
        ...     "orders",
        ...     pen.list_source([{"order": 7, "at": minute(0)}]),
        ...     event_time="at",
        ... )
        >>> payments = p.read(
        ...     "payments",
        ...     pen.list_source([{"order": 7, "paid": minute(3)}]),
        ...     event_time="paid",
        ... )
        >>> paid = orders.join("paid", payments, on="order", within=("0s", "10m"))
        >>> paid.select("order", "paid").write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> [(row["order"], row["paid"].minute) for row in out.rows()]
        [(7, 3)]
        """
        asked = JoinAsked(
            name=name,
            on=on,
            left_on=left_on,
            right_on=right_on,
            how=how,
            window=window,
            within=within,
            where=where,
            suffix=suffix,
            ttl=ttl,
            on_bad=on_bad,
            parallelism=parallelism,
        )
        if isinstance(right, LookupLike):
            return self._stream_at(add_lookup_join(self.builder, self.port, right, asked))
        _check_right(name, self.builder, right)
        return self._stream_at(add_join(self.builder, self.port, right.port, asked))


def _check_right(name: str, builder: GraphBuilder, right: object) -> None:
    """Refuse a right side that is no stream of the same pipeline."""
    if not isinstance(right, JoinSteps):
        shown = repr(right) if "\n" not in repr(right) else type(right).__name__
        raise UserError(
            f"join {name!r} cannot read from {shown:.80}: give a stream, which read and steps "
            "return, or a lookup, such as pen.lookup_files(…)",
            code=ErrorCode.INVALID_CONFIG,
            operator=name,
        )
    if right.builder is not builder:
        raise UserError(
            f"join {name!r} of pipeline {builder.job!r} cannot read from a stream of pipeline "
            f"{right.builder.job!r}: build both in one pipeline",
            operator=name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAsked:
    """A join as the user wrote it."""

    name: str
    on: Names | None
    left_on: Names | None
    right_on: Names | None
    how: str
    window: JoinWindow | None
    within: Within | None
    where: pl.Expr | None
    suffix: str
    ttl: Ttl | None
    on_bad: OnBad
    parallelism: int | None


def add_join(builder: GraphBuilder, left: Port, right: Port, asked: JoinAsked) -> Port:
    """Add the operator of the join that is asked for; return its output."""
    operator = builder.claim(asked.name)
    _check_arguments(asked)
    if asked.within is None and asked.window is None:
        spec, keys = _table_join(left.schema, right.schema, asked)
    else:
        for port in (left, right):
            port.check_append_only("join")
        spec, keys = _timed_join(left.schema, right.schema, asked)
    sides = [port.sent_by(names) for port, names in zip((left, right), keys, strict=True)]
    builder.place(operator, spec, sides, parallelism=asked.parallelism)
    return builder.port(operator)


def add_lookup_join(
    builder: GraphBuilder, left: Port, lookup: LookupLike, asked: JoinAsked
) -> Port:
    """Add the operator that looks up the keys of a stream's rows; return its output."""
    operator = builder.claim(asked.name)
    _check_arguments(asked)
    diverts = diverts_bad(asked.on_bad, where=f"join {asked.name!r}: ")
    given = {"within": asked.within, "window": asked.window, "ttl": asked.ttl}
    refuse_arguments(asked.name, {**given, "on_bad": "divert" if diverts else None})
    left.check_append_only("lookup join")
    if isinstance(lookup, StreamTable):
        _check_right(asked.name, builder, lookup.stream)
    keys = keys_of(left.schema, lookup.schema, asked)
    common: dict[str, Any] = {
        "left": left.schema.keyed_by(*keys[0]).to_bytes(),
        "right": lookup.schema.keyed_by(*keys[1]).to_bytes(),
        "how": str(to_how(asked.how)),
        "suffix": asked.suffix,
        "where": None if asked.where is None else asked.where.meta.serialize(),
    }
    place_lookup(builder, operator, left, lookup, common, parallelism=asked.parallelism)
    return builder.port(operator)


def _check_arguments(asked: JoinAsked) -> None:
    """Refuse arguments that do not go together or are of another kind than they should be."""
    problems = []
    is_timed = asked.within is not None or asked.window is not None
    if asked.within is not None and asked.window is not None:
        problems.append("within= and window= are two kinds of joins: give one of them")
    if asked.ttl is not None and is_timed:
        kind, keeps = (
            ("within=", "bounds") if asked.within is not None else ("window=", "windows")
        )
        problems.append(
            f"ttl= does not go with {kind}: its rows are kept as long as its {keeps} need them"
        )
    where: object = asked.where
    if where is not None and not isinstance(where, pl.Expr):
        problems.append(
            f"where={where!r} is no Polars expression: write one over the columns of both "
            "sides, as in pl.col('price') > pl.col('reserve')"
        )
    suffix: object = asked.suffix
    if not isinstance(suffix, str):
        problems.append(f"suffix={suffix!r} is no text")
    if problems:
        raise UserError(
            f"join {asked.name!r} cannot be computed:\n  " + "\n  ".join(problems),
            code=ErrorCode.INVALID_CONFIG,
            operator=asked.name,
        )


def keys_of(
    left: StreamSchema, right: StreamSchema, asked: JoinAsked
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that two sides are joined by, or raise why they cannot be.

    Without any named, they are the keys of sides that are keyed already. Rows that carry windows
    may be joined by these alone.
    """
    where = f"join {asked.name!r}: "
    given = {"on": asked.on, "left_on": asked.left_on, "right_on": asked.right_on}
    on, left_on, right_on = (
        None if names is None else to_names(option, names, where=where)
        for option, names in given.items()
    )
    if on is not None and (left_on is not None or right_on is not None):
        problem = "give on=, or left_on= and right_on=, but not both"
    elif (left_on is None) != (right_on is None):
        problem = "left_on= and right_on= go together: name the columns of both sides"
    else:
        left_on = on or left_on or left.key_columns
        right_on = on or right_on or right.key_columns or left.key_columns
        has_none = not left_on and not right_on and isinstance(asked.window, SameWindow)
        if (left_on and right_on) or has_none:
            check_problems(asked.name, find_key_problems(left, right, left_on, right_on))
            return left_on, right_on
        problem = "it has no key: name the columns that are equal in a match, with on="
    raise UserError(
        f"join {asked.name!r} cannot be computed: {problem}",
        code=ErrorCode.INVALID_CONFIG,
        operator=asked.name,
    )


_Keys: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


def _timed_join(
    left: StreamSchema, right: StreamSchema, asked: JoinAsked
) -> tuple[OperatorSpec, _Keys]:
    """Return the operator of a join by event time, and the keys of both sides."""
    keys = keys_of(left, right, asked)
    problems = [
        f"the rows of the {side} side have no event time: name their timestamp column as "
        f"event_time when reading them, and keep it{_did_you_mean_time(stream)}"
        for side, stream in zip(SIDES, (left, right), strict=True)
        if stream.time_column is None
    ]
    if isinstance(asked.window, SameWindow):
        problems += _find_window_problems(left, right)
        keys = _with_windows(keys[0]), _with_windows(keys[1])
    check_problems(asked.name, problems)
    common = _common_of(left, right, keys, asked)
    config = _config_of(asked, common)
    check_problems(asked.name, config.rules().find_problems())
    if isinstance(asked.window, SessionWindow):
        _check_sessions(asked.name, left, right, keys)
    return config.to_operator_spec(), keys


def _common_of(
    left: StreamSchema, right: StreamSchema, keys: _Keys, asked: JoinAsked
) -> dict[str, Any]:
    """Return what the configs of all joins hold."""
    return {
        "left": left.keyed_by(*keys[0]).to_bytes(),
        "right": right.keyed_by(*keys[1]).to_bytes(),
        "how": str(to_how(asked.how)),
        "suffix": asked.suffix,
        "where": None if asked.where is None else asked.where.meta.serialize(),
        "diverts_bad": diverts_bad(asked.on_bad, where=f"join {asked.name!r}: "),
    }


def _table_join(
    left: StreamSchema, right: StreamSchema, asked: JoinAsked
) -> tuple[OperatorSpec, _Keys]:
    """Return the operator of a join of all rows, and the keys of both sides."""
    keys = keys_of(without_change(left), without_change(right), asked)
    sides = left.keyed_by(*keys[0]), right.keyed_by(*keys[1])
    common = _common_of(left, right, keys, asked)
    return table_join_spec(asked.name, sides, asked.ttl, common), keys


def _config_of(asked: JoinAsked, common: dict[str, Any]) -> JoinConfig:
    """Return the config of the operator, or refuse bounds and lengths that are not possible."""
    window = asked.window
    if asked.within is not None:
        lower, upper = _to_bounds(asked.name, asked.within)
        shown = f"{asked.within[0]} to {asked.within[1]}"
        return IntervalJoinConfig(
            **common, lower_micros=lower, upper_micros=upper, bounds=shown
        )
    if isinstance(window, SameWindow):
        return IntervalJoinConfig(
            **common, lower_micros=0, upper_micros=0, bounds=str(window), has_windows=True
        )
    lengths = join_window_to_micros(asked.name, window)
    if isinstance(window, SessionWindow):
        return SessionJoinConfig(**common, window=str(window), gap_micros=lengths["gap"])
    return WindowJoinConfig(
        **common,
        window=str(window),
        width_micros=lengths["width"],
        slide_micros=lengths["slide"],
        offset_micros=lengths["offset"],
    )


def _to_bounds(name: str, within: Within) -> tuple[int, int]:
    """Return the bounds of an interval in microseconds."""
    problems: list[str] = []
    bounds: list[int] = []
    given: object = within
    if not isinstance(given, tuple | list) or len(given) != 2:
        problems.append("give the lower and the upper bound, as in ('-5m', '10m')")
    else:
        for what, duration in zip(("lower bound", "upper bound"), within, strict=True):
            try:
                bounds.append(to_micros(duration, what, is_signed=True))
            except UserError as error:
                problems.append(error.message)
    if not problems:
        problems = find_bound_problems(bounds[0], bounds[1])
    if problems:
        raise UserError(
            f"join {name!r} cannot be within {within!r}:\n  " + "\n  ".join(problems),
            code=ErrorCode.INVALID_NUMBER,
            operator=name,
        )
    return bounds[0], bounds[1]


def _did_you_mean_time(stream: StreamSchema) -> str:
    stamps = [field.name for field in stream.arrow if pa.types.is_timestamp(field.type)]
    return did_you_mean("event_time", stamps) if stamps else ""


def _with_windows(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*keys, WINDOW_START, WINDOW_END)))


def _find_window_problems(left: StreamSchema, right: StreamSchema) -> list[str]:
    """Return why rows of two sides do not carry windows of the same form."""
    problems = [
        f"the rows of the {side} side carry no windows: same_window joins what "
        "window(…).aggregate(…) emits, with its columns window_start, window_end and "
        "window_time, which is the event time"
        for side, stream in zip(SIDES, (left, right), strict=True)
        if stream.time_column != WINDOW_TIME
        or not {WINDOW_START, WINDOW_END} <= set(stream.arrow.names)
    ]
    names = [WINDOW_START, WINDOW_END, WINDOW_TIME]
    return problems or find_key_problems(left, right, names, names)


def _check_sessions(
    name: str, left: StreamSchema, right: StreamSchema, keys: _Keys
) -> None:
    """Refuse columns that sessions cannot be cut by, or whose names they need."""
    problems = [
        f"column {WAKES_AT!r} of the {side} side has the name of a column of the join's state: "
        "rename it before"
        for side, stream in zip(SIDES, (left, right), strict=True)
        if WAKES_AT in stream.arrow.names
    ]
    for stream, names in zip((left, right), keys, strict=True):
        try:
            check_groupable(stream.arrow, names)
        except SchemaError as error:
            problems.append(error.message)
    check_problems(name, problems)
