"""Stream and KeyedStream: the steps that a pipeline is made of.

A stream is a value: every step returns another one, and several steps may follow the same
stream. Nothing runs; each step adds an operator to the pipeline's graph. Steps without state
get automatic names; operators, sources and sinks are named by the user, because a name is the
identity of state. Mistakes are gathered and raised all at once; see `penstock.api.gathering`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from penstock.api.changelogs import ChangelogSteps
from penstock.api.event_time import EventTimeSteps
from penstock.api.gathering import step
from penstock.api.given_expressions import ExpressionLike, to_keys
from penstock.api.graph_builder import BrokenPort, GraphBuilder, Port
from penstock.api.in_process import Preview, preview
from penstock.api.joining import JoinSteps
from penstock.api.other_words import KEYED_HINTS, STREAM_HINTS, WINDOWED_HINTS
from penstock.api.ranking import RankingSteps, WindowRankingSteps
from penstock.api.row_steps import RowSteps
from penstock.api.windowing import WindowStep, add_updating_aggregate
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.core.spellings import OnBad, absent, renamed
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import LATE, MAIN, Exchange, OperatorSpec, Writable
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.expressions import with_columns_spec
from penstock.operators.operator import ArrowOperator
from penstock.operators.stateless import UnionConfig
from penstock.operators.user_functions import process_spec
from penstock.operators.windows.definitions import Window
from penstock.state.tables.specs import TimeDomain

Step: TypeAlias = ArrowOperator | OperatorSpec
"""A user's operator, or the spec of a built-in or plugged-in one."""


def _broken(stream: "AnyStream | WindowedStream") -> "Stream":
    return Stream(stream.builder, BrokenPort())


class AnyStream(JoinSteps, RankingSteps):
    """What `Stream` and `KeyedStream` share: a place in the graph, windows and operators."""

    def __init__(self, builder: GraphBuilder, port: Port) -> None:
        self.builder = builder
        """The graph that steps are added to; code that adds steps of its own uses it."""
        self.port = port
        """The output that the next step reads."""

    @property
    def schema(self) -> StreamSchema:
        """The columns of its rows, which one is their event time, and which are their key."""
        return self.builder.schema_of(self.port)

    def preview(
        self, n: int = 10, *, max_rows: int = 10_000, timeout: DurationLike = "5s"
    ) -> Preview:
        """Run the pipeline up to here over a few rows, and return the first ones.

        It runs in this process at parallelism 1, without sinks, and leaves no checkpoint. It
        ends when it has `n` rows, when sources gave `max_rows`, or after `timeout` if they go
        on for ever; so a window shows only if it closes within these rows.

        >>> import penstock as pen, polars as pl
        >>> rows = pen.Pipeline("p").read("numbers", pen.impulse(count=1_000_000))
        >>> rows.select("counter").filter(pl.col("counter") % 2 == 1).preview(2)
        shape: (2, 1)
        ┌─────────┐
        │ counter │
        │ ---     │
        │ i64     │
        ╞═════════╡
        │ 1       │
        │ 3       │
        └─────────┘
        """
        return preview(self, n, max_rows, timeout)

    @step(lambda stream: WindowedStream(stream.builder, None), is_named=True)
    @renamed(bad_times="on_bad")
    def window(
        self,
        name: str,
        window: Window,
        *,
        allowed_lateness: DurationLike | None = None,
        on_bad: OnBad = "fail",
        parallelism: int | None = None,
    ) -> "WindowedStream":
        """Cut all rows, or those of each key, into windows, by event time unless they say else.

        `aggregate` of the returned stream takes what to compute. Rows whose event time is
        null or outside of the years 1 to 9999 fail the job, or go to the side output `BAD` if
        `on_bad` is "divert".

        With `allowed_lateness` results are a changelog: a window is emitted when it closes, and
        again when a row comes that is late by less than that. Behind a changelog, tumbling and
        sliding windows take rows out again that are removed before they close.

        >>> import datetime as dt, penstock as pen
        >>> rows = [
        ...     {"user": "ada", "at": dt.datetime(2024, 1, 1, 12, 0, s)} for s in (1, 2)
        ... ]
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-window")
        >>> clicks = p.read(
        ...     "clicks", pen.list_source(rows), event_time="at", watermark_delay="5s"
        ... )
        >>> minutes = clicks.key_by("user").window("per-minute", pen.tumbling("1m"))
        >>> minutes.aggregate(clicks=pen.count()).write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> [(row["user"], str(row["window_end"]), row["clicks"]) for row in out.rows()]
        [('ada', '2024-01-01 12:01:00', 2)]
        """
        step = WindowStep(
            self.builder,
            self.port,
            name,
            window,
            on_bad,
            allowed_lateness=allowed_lateness,
            parallelism=parallelism,
        )
        return WindowedStream(self.builder, step)

    @step(_broken, is_named=True)
    def process(
        self,
        name: str,
        operator: Step,
        *others: "AnyStream",
        parallelism: int | None = None,
    ) -> "Stream":
        """Put an operator behind this stream, and `others` as its further inputs.

        Behind a keyed stream each subtask of the operator gets all rows of its keys. Key
        `others` by columns of the same meaning, so that their rows reach the same subtask.

        >>> import penstock as pen
        >>> from penstock.operators import ArrowOperator
        >>> class Log(ArrowOperator):
        ...     def name(self):
        ...         return "log"
        ...
        ...     def process_batch(self, batch, ctx, collector):
        ...         print(batch.num_rows, "rows")
        ...         collector.collect(batch)
        >>> p = pen.Pipeline("p")
        >>> rows = p.read("numbers", pen.impulse(count=5))
        >>> rows.process("log", Log()).write("out", pen.blackhole())
        >>> status = p.run_in_process("memory:")
        5 rows
        """
        return self._then(
            operator, *others, name=name, parallelism=parallelism, settles=True
        )

    def _stream_at(self, port: Port) -> "Stream":
        return Stream(self.builder, port)

    def _aggregated(
        self,
        name: str,
        aggregates: Mapping[str, Aggregate],
        ttl: DurationLike | None,
        ttl_domain: TimeDomain | str | None,
        parallelism: int | None,
    ) -> "Stream":
        changelog = add_updating_aggregate(
            self.builder,
            self.port,
            name,
            aggregates,
            ttl=ttl,
            ttl_domain=ttl_domain,
            parallelism=parallelism,
        )
        return Stream(self.builder, changelog)

    def _then(
        self,
        step: Step,
        *others: "AnyStream",
        name: str | None = None,
        parallelism: int | None = None,
        settles: bool = False,
    ) -> "Stream":
        """Add an operator behind this stream and others, under an automatic name by default.

        An operator that looks at each change, not only at signs, gets settled changelogs.
        """
        builder, spec = self.builder, _to_spec(step)
        name = builder.name_for(spec.kind) if name is None else name
        for stream in others:
            other: object = stream
            if not isinstance(other, AnyStream):
                raise UserError(
                    f"operator {name!r} cannot read from {other!r:.80}: give streams, which "
                    "read and steps return",
                    code=ErrorCode.INVALID_CONFIG,
                    operator=name,
                )
            if stream.builder is not builder:
                raise UserError(
                    f"operator {name!r} of pipeline {builder.job!r} cannot read from a stream "
                    f"of pipeline {stream.builder.job!r}: build both in one pipeline",
                    operator=name,
                )
        ports = [stream.port for stream in (self, *others)]
        if settles:
            ports = [builder.settled(port) for port in ports]
        operator = builder.add_step(name, spec, ports, parallelism=parallelism)
        return Stream(builder, builder.port(operator))


class WindowedStream(WindowRankingSteps):
    """A stream cut into windows; `aggregate` takes what to compute. Made by `window`."""

    def __init__(self, builder: GraphBuilder, windows: WindowStep | None) -> None:
        self.builder = builder
        """The graph that steps are added to."""
        self._windows = windows
        """None for windows without a name: that mistake was noted."""

    if not TYPE_CHECKING:  # A checker would take any name for an attribute.

        def __getattr__(self, name):
            raise absent("WindowedStream", name, WINDOWED_HINTS, dir(WindowedStream))

    @step(_broken)
    def aggregate(self, **aggregates: Aggregate) -> "Stream":
        """Compute results per key and window; each is named by its keyword.

        A row has the key columns, `window_start`, `window_end`, `window_time` (the last
        instant of the window, and the event time of the row) and the results. Rows that
        came when all their windows had closed are in the side output `LATE`.

        >>> import datetime as dt, penstock as pen
        >>> rows = pen.list_source(
        ...     [{"auction": 1, "price": 5, "at": dt.datetime(2024, 1, 1)}]
        ... )
        >>> bids = pen.Pipeline("p").read("bids", rows, event_time="at")
        >>> windows = bids.key_by("auction").window("w", pen.sliding("10s", "2s"))
        >>> windows.aggregate(bids=pen.count(), top=pen.max("price")).schema.arrow.names
        ['auction', 'window_start', 'window_end', 'window_time', 'bids', 'top']
        """
        if self._windows is None:
            return _broken(self)
        return Stream(self.builder, *self._windows.add(aggregates))

    def _stream_at(self, port: Port, sides: Mapping[str, Port] | None = None) -> "Stream":
        return Stream(self.builder, port, sides)


class Stream(AnyStream, RowSteps, EventTimeSteps, ChangelogSteps):
    """The rows between two steps. Made by `Pipeline.read` and by steps."""

    def __init__(
        self, builder: GraphBuilder, port: Port, sides: Mapping[str, Port] | None = None
    ) -> None:
        super().__init__(builder, port)
        self._sides = dict(sides or {})
        """The step's side outputs that another operator of the same step emits."""

    if not TYPE_CHECKING:  # A checker would take any name for an attribute.

        def __getattr__(self, name):
            raise absent("Stream", name, STREAM_HINTS, dir(Stream))

    @step(_broken, is_named=True)
    def aggregate(
        self,
        name: str,
        /,
        *,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain | str | None = None,
        parallelism: int | None = None,
        **aggregates: Aggregate,
    ) -> "Stream":
        """Keep results of all rows and emit their changes; `key_by` gives results per key.

        Everything else is as in `KeyedStream.aggregate`, with one row and no key columns.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-all-rows")
        >>> sales = p.read("sales", pen.list_source([{"price": 7}] * 2))
        >>> sales.aggregate("spent", total=pen.sum("price")).write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'change': 'insert', 'total': 14}]
        """
        return self._aggregated(name, aggregates, ttl, ttl_domain, parallelism)

    @step(_broken)
    def union(self, *others: "Stream") -> "Stream":
        """Merge streams that have the same columns, in no particular order.

        >>> import penstock as pen
        >>> p = pen.Pipeline("p")
        >>> web = p.read("web", pen.list_source([{"user": "ada"}]))
        >>> everything = web.union(p.read("phone", pen.list_source([{"user": "bob"}])))
        """
        if not others:
            return self
        return self._then(UnionConfig().to_operator_spec(), *others)

    @step(_broken)
    def rebalance(self, *, parallelism: int | None = None) -> "Stream":
        """Spread rows evenly over the subtasks of the next step.

        With `parallelism` the next step has so many.
        """
        self.port.check_append_only("rebalance")
        return Stream(
            self.builder, self.port.sent(Exchange.REBALANCE, parallelism=parallelism)
        )

    @step(_broken)
    def broadcast(self) -> "Stream":
        """Send all rows to every subtask of the next step."""
        return Stream(self.builder, self.port.sent(Exchange.BROADCAST))

    @step(lambda stream: KeyedStream(stream.builder, BrokenPort()))
    def key_by(
        self, *columns: str | pl.Expr | Sequence[str], **named: ExpressionLike
    ) -> "KeyedStream":
        """Send rows to the subtask that owns their key, for the stateful step that follows.

        A key that is computed becomes a new column of its keyword or alias, else of the name
        "key".

        >>> import penstock as pen, polars as pl
        >>> rows = pen.list_source([{"user": "ada", "n": 1}])
        >>> clicks = pen.Pipeline("p").read("clicks", rows)
        >>> clicks.key_by("user").schema.key_columns
        ('user',)
        >>> clicks.key_by("user", parity=pl.col("n") % 2).schema.key_columns
        ('user', 'parity')
        """
        if not columns and not named:
            raise UserError(
                "key_by needs at least one column: name those that make up the key"
            )
        known = self.port.schema.arrow.names
        keys, computed = to_keys(columns, named, known)
        stream: Stream = self._then(with_columns_spec(*computed)) if computed else self
        chosen = stream._columns_named("key_by", keys)
        if not chosen:  # an empty list, or a selector that takes none of the columns
            raise UserError(
                f"key_by names none of the columns ({', '.join(known)}): name those that make "
                "up the key; aggregate and window of the stream itself are about all rows",
                code=ErrorCode.INVALID_CONFIG,
            )
        return KeyedStream(self.builder, stream.port.sent_by(chosen))

    @step(_broken)
    def side_output(self, name: str) -> "Stream":
        """Return another output of the step that this stream comes from, such as `LATE`.

        >>> import datetime as dt, penstock as pen
        >>> rows = pen.list_source([{"at": dt.datetime(2024, 1, 1)}])
        >>> clicks = pen.Pipeline("p").read("clicks", rows, event_time="at")
        >>> counts = clicks.window("per-minute", pen.tumbling("1m")).aggregate(
        ...     n=pen.count()
        ... )
        >>> counts.side_output(pen.LATE).write("late", pen.blackhole())
        """
        operator = self.port.operator
        if name in self._sides:
            return Stream(self.builder, self._sides[name])
        sides = {*self.builder.outputs_of(operator), *self._sides} - {MAIN}
        if name not in sides:
            hint = "An operator declares them in side_outputs"
            if name == LATE:
                hint = "Only windows and joins by event time have late rows"
            raise UserError(
                f"operator {operator!r} has no side output {name!r}"
                f"{did_you_mean(str(name), sides)}. {hint}",
                code=ErrorCode.UNKNOWN_OUTPUT,
                operator=operator,
                output=name,
            )
        return Stream(self.builder, self.builder.port(operator, name))

    @step(lambda _: None, is_named=True)
    def write(
        self, name: str, sink: Step | Writable, *, parallelism: int | None = None
    ) -> None:
        """End here: put a sink behind this stream.

        >>> import penstock as pen
        >>> p = pen.Pipeline("p")
        >>> p.read("numbers", pen.list_source([{"n": 1}])).write("out", pen.stdout())
        >>> status = p.run_in_process("memory:")
        {"n": 1}
        """
        spec = sink.sink_spec() if isinstance(sink, Writable) else _to_spec(sink)
        rows = self.builder.settled(self.port)
        self.builder.add_step(name, spec, [rows], parallelism=parallelism, is_sink=True)


class KeyedStream(AnyStream):
    """Rows that are sent by key: the input of a step with state per key. Made by `key_by`."""

    if not TYPE_CHECKING:  # A checker would take any name for an attribute.

        def __getattr__(self, name):
            raise absent("KeyedStream", name, KEYED_HINTS, dir(KeyedStream))

    @step(_broken, is_named=True)
    def aggregate(
        self,
        name: str,
        /,
        *,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain | str | None = None,
        parallelism: int | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Keep results per key and emit their changes: a changelog of inserts and updates.

        A key without rows for `ttl` is deleted, by event time if the stream has it and
        `ttl_domain` is not "processing-time". Aggregates that keep all values, such as `median`,
        are warned of without a `ttl`; `ttl="forever"` says that it is meant. The step emits one
        change per key and epoch, and none if the results are as before.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-aggregate")
        >>> sales = p.read("sales", pen.list_source([{"user": "ada", "price": 7}] * 2))
        >>> spent = sales.key_by("user").aggregate("spent", total=pen.sum("price"))
        >>> spent.write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'change': 'insert', 'user': 'ada', 'total': 14}]
        """
        return self._aggregated(name, aggregates, ttl, ttl_domain, parallelism)


def _to_spec(step: Step) -> OperatorSpec:
    return step if isinstance(step, OperatorSpec) else process_spec(step)
