"""`concat_sources`, the function by which users put history in front of a live stream.

    p.read("bids", concat_sources(history=files("lake/*.parquet"), live=kafka("bids", …)))

The reading itself is in `source`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock.connectors.history.handover import WAYS, Handover, OffsetColumns
from penstock.connectors.history.source import ConcatSourceConfig
from penstock.core.clock import DurationLike, to_micros
from penstock.core.rows import to_instant
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec, Readable

HandoverLike: TypeAlias = (
    datetime | str | Mapping[int, int] | Mapping[str, Mapping[int, int]] | None
)
"""The hand-over point, as users write it."""
SideLike: TypeAlias = Readable | OperatorSpec


@runtime_checkable
class LiveSpec(Protocol):
    """What names a live stream that can begin at a point, such as topics of Kafka."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named; () if a pattern selects them."""
        ...

    def live_spec(self) -> OperatorSpec:
        """Return the source, whose operator is a `LiveSource`."""
        ...


@runtime_checkable
class HistorySpec(Protocol):
    """What names files that can be read in the order of a column's values."""

    @property
    def time_column(self) -> str | None:
        """The event time, in whose order they are read."""
        ...

    def in_order_of(self, column: str) -> "HistorySpec":
        """Return the same, read in that order as far as statistics tell it.

        If they have an event time of their own, it is read in that order instead.
        """
        ...

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads them."""
        ...


DEFAULT_SKEW = "1h"


def concat_sources(
    *,
    history: SideLike,
    live: SideLike,
    at: HandoverLike = None,
    by: str | None = None,
    skew: DurationLike | None = DEFAULT_SKEW,
    offset_columns: Mapping[str, str] | None = None,
    order_by: str | None = None,
) -> "ConcatSpec":
    """Read history to its end, then go on with the live stream, as one source for `Pipeline.read`.

    `history` is a source that ends, such as files or a version of a Delta table; `live` one
    that goes on, such as `pen.kafka(…, start="after-history")`. Both must have the same
    columns. The hand-over has no gap and no overlap, given one of these points:

    - `at` an instant and `by` a timestamp column: history gives the rows before the instant,
      live those at or after it. Kafka is read from the first record whose own timestamp is at
      most `skew` before the instant; None is for all that it holds.
    - `at` offsets, as `{"bids": {0: 17, 1: 20}}`: live begins there.
    - neither: history's rows have columns with their partition and offset, and live begins
      behind the highest offset of each partition. `offset_columns` names them, as
      `{"partition": "part", "offset": "position", "topic": "origin"}`.

    A partition that is not named begins at 0. A point that Kafka does not hold any longer fails
    the start. Files are read in the order of their event time, by default `order_by` or else `by`,
    as far as footers or table logs tell it, else in order of name.

    >>> import penstock as pen
    >>> both = concat_sources(
    ...     history=pen.list_source({"n": [1, 2], "at": [datetime(2026, 1, 1)] * 2}),
    ...     live=pen.list_source({"n": [3], "at": [datetime(2026, 1, 2)]}),
    ...     at="2026-01-02",
    ...     by="at",
    ... )
    >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-concat-sources")
    >>> p.read("rows", both).write("out", out)
    >>> status = p.run_in_process("memory:")
    >>> [row["n"] for row in out.rows()]
    [1, 2, 3]
    """
    topics: tuple[str, ...] = live.topics if isinstance(live, LiveSpec) else ()
    columns = None if offset_columns is None else _to_columns(offset_columns)
    handover = _to_handover(at, by, skew, columns, topics)
    return ConcatSpec(history, live, handover, order_by)


@dataclass(frozen=True, slots=True, repr=False)
class ConcatSpec:
    """Two sources of a graph, one after the other. Made by `concat_sources`."""

    history: SideLike
    live: SideLike
    handover: Handover
    order_by: str | None = None

    def __repr__(self) -> str:
        return f"ConcatSpec(history={self.history!r}, live={self.live!r}, …)"

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads both."""
        history, column = self.history, self.order_by or self.handover.by
        if column is not None and isinstance(history, HistorySpec):
            ordered = history.in_order_of(column)
            if self.order_by not in (None, ordered.time_column):
                raise _wrong(
                    f"order_by={self.order_by!r} is not the event time of history, which is "
                    f"{ordered.time_column!r}: leave it out, as files are read in that order"
                )
            history = ordered
        elif self.order_by is not None:
            raise _wrong(
                "order_by= is for files and tables, whose statistics tell the order; this history "
                "is read in its own"
            )
        first = history if isinstance(history, OperatorSpec) else history.source_spec()
        then = self.live
        if not isinstance(then, OperatorSpec):
            then = then.live_spec() if isinstance(then, LiveSpec) else then.source_spec()
        config = ConcatSourceConfig(
            {"kind": first.kind, "config": dict(first.config)},
            {"kind": then.kind, "config": dict(then.config)},
            self.handover,
        )
        return config.to_operator_spec()


def _to_handover(
    at: object,
    by: str | None,
    skew: DurationLike | None,
    columns: OffsetColumns | None,
    topics: tuple[str, ...],
) -> Handover:
    """Return the point that users have written."""
    is_given = skew != DEFAULT_SKEW
    if is_given and not isinstance(at, datetime | str):
        raise _wrong("skew= is for a hand-over at an instant: leave it out")
    skew_micros = None if skew is None else to_micros(skew, "skew")
    only = topics[0] if len(topics) == 1 else None
    if isinstance(at, datetime | str):
        if by is None:
            raise _wrong(
                "at= is an instant, and by= must name the column to compare with it"
            )
        if columns is not None:
            raise _wrong("at= is an instant, so offset_columns= has no use: leave it out")
        return Handover("time", _to_micros(at), by, skew_micros)
    if by is not None:
        raise _wrong(
            "by= names a column to compare with an instant: give the instant as at="
        )
    if at is None:
        return Handover("columns", columns=columns, only_topic=only)
    if not isinstance(at, Mapping):
        raise _wrong(f"at= is {at!r:.80}: {WAYS}")
    offsets = dict(_to_offsets(at, topics))
    return Handover("offsets", offsets=offsets, columns=columns, only_topic=only)


def _to_micros(at: datetime | str) -> int:
    try:
        instant = datetime.fromisoformat(at) if isinstance(at, str) else at
        return to_instant(instant)
    except ValueError as error:
        raise _wrong(
            f"at= is {at!r:.80}, which is no instant ({error}): write '2026-01-31T12:00:00Z', or "
            "give a datetime; one without a time zone is in UTC"
        ) from error


def _to_offsets(
    given: Mapping[Any, Any], topics: tuple[str, ...]
) -> Iterator[tuple[str, int]]:
    for key, value in given.items():
        by_topic = {key: value}
        if isinstance(key, int) and len(topics) == 1:
            by_topic = {topics[0]: {key: value}}
        for topic, offsets in by_topic.items():
            if not (isinstance(topic, str) and isinstance(offsets, Mapping)):
                raise _wrong(
                    f"at= has {key!r:.80}: offsets are given by topic, as {{'bids': {{0: 17}}}}"
                )
            if topics and topic not in topics:
                raise _wrong(
                    f"at= has the topic {topic!r:.80}{did_you_mean(topic, topics)}, "
                    "which the live side does not read"
                )
            for number, offset in offsets.items():
                if not all(isinstance(n, int) and n >= 0 for n in (number, offset)):
                    raise _wrong(
                        f"at= has {number!r:.40}: {offset!r:.40} for {topic!r}: partitions and "
                        "offsets are whole numbers"
                    )
                yield f"{topic}/{number}", offset


def _to_columns(given: Mapping[str, str]) -> OffsetColumns:
    known = ("partition", "offset", "topic")
    for name in given:
        if name not in known:
            raise _wrong(f"offset_columns has no {name!r:.80}{did_you_mean(name, known)}")
    if "partition" not in given or "offset" not in given:
        raise _wrong("offset_columns names two columns: {'partition': …, 'offset': …}")
    return OffsetColumns(**given)


def _wrong(problem: str) -> UserError:
    return UserError(f"concat_sources: {problem}", code=ErrorCode.INVALID_CONFIG)
