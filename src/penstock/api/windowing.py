"""Turns aggregates as users write them, windowed and updating, into operators of a graph.

    keyed.window("per-auction", pen.tumbling("10s")).aggregate(bids=pen.count())

| step | operators |
|---|---|
| tumbling, sliding | a combiner where the rows are, then by key the windows |
| the same by processing time | others of that kind, which go by the driver's clock |
| session | by key the windows, over rows |
| `key_by(…).aggregate(…)` | a combiner where the rows are, then by key the updating aggregate |
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from penstock.api.graph_builder import GraphBuilder, Port
from penstock.core.clock import DurationLike, to_micros
from penstock.core.ids import OperatorId
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.spellings import OnBad, diverts_bad
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD, LATE, Exchange, OperatorSpec
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import ALL_ROWS, KEY_OF_ALL_ROWS
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.expressions import with_columns_spec
from penstock.operators.updating.aggregate import updating_aggregate_spec
from penstock.operators.updating.change_plan import compile_changes
from penstock.operators.updating.combine import (
    combine_changes_spec,
    combine_spec,
    partial_schema,
)
from penstock.operators.updating.lifetimes import LAST_SEEN, Expiry
from penstock.operators.updating.retracting import retracting_aggregate_spec
from penstock.operators.windows.aggregation import (
    OWN_COLUMNS,
    WindowAggregation,
    find_stream_problems,
)
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.changed_rows import (
    STATE_COLUMNS,
    ChangedAggregation,
    compile_changed,
    find_name_problems,
)
from penstock.operators.windows.changing import changing_window_specs
from penstock.operators.windows.definitions import (
    SessionWindow,
    Window,
    lateness_to_micros,
    window_to_domain,
    window_to_micros,
)
from penstock.operators.windows.panes import pane_window_specs
from penstock.operators.windows.processing_time import clock_window_specs
from penstock.operators.windows.revised_sessions import revised_session_spec
from penstock.operators.windows.sessions import session_window_spec
from penstock.state.tables.specs import TimeDomain, to_time_domain

FOREVER = "forever"
"""The time to live of keys that are never forgotten."""
_log = logging.getLogger(__name__)
_ANY_LENGTHS = {"width": 1, "slide": 1, "offset": 0, "gap": 1}
"""Replaces windows with wrong lengths, so that their aggregates are checked all the same."""


class WindowStep:
    """The step that cuts a stream into windows: checked at once, added with its aggregates."""

    def __init__(
        self,
        builder: GraphBuilder,
        port: Port,
        name: str,
        window: Window,
        on_bad: OnBad,
        *,
        allowed_lateness: DurationLike | None = None,
        parallelism: int | None,
    ) -> None:
        self._builder = builder
        self.rows = port
        """The stream that is cut."""
        self.name = name
        self._window = window
        self._parallelism = parallelism
        self._lengths = _ANY_LENGTHS
        with builder.problems.noting():
            self._lengths = window_to_micros(name, window)
        self._lateness: int | None = None
        with builder.problems.noting():
            self._lateness = lateness_to_micros(name, allowed_lateness)
        self._diverts_bad = False
        with builder.problems.noting():
            self._diverts_bad = diverts_bad(on_bad, where=f"window {name!r}: ")
        self._domain = TimeDomain.EVENT_TIME
        with builder.problems.noting():
            self._domain = window_to_domain(name, window)
        if isinstance(window, SessionWindow):
            port.check_append_only("session window")
        elif self._is_by_clock:
            port.check_append_only("window by processing time")
            with builder.problems.noting():
                self._refuse_what_needs_event_time()

    @property
    def _is_by_clock(self) -> bool:
        return self._domain is TimeDomain.PROCESSING_TIME

    def _refuse_what_needs_event_time(self) -> None:
        """Refuse options about rows that windows by processing time never have."""
        given = {
            "allowed_lateness": self._lateness is not None,
            "on_bad": self._diverts_bad,
        }
        self._lateness, self._diverts_bad = None, False
        options = [option for option, is_given in given.items() if is_given]
        if options:
            raise UserError(
                f"window {self.name!r} is of processing time, by which no row is late or has a "
                f"bad time: leave {' and '.join(options)} out",
                code=ErrorCode.INVALID_CONFIG,
                operator=self.name,
            )

    def add(self, aggregates: Mapping[str, Aggregate]) -> tuple[Port, Mapping[str, Port]]:
        """Add the operators; return the results, and the side outputs by name."""
        builder, rows = self._builder, self.rows
        operator = producer = builder.claim(self.name)
        aggregation = _compile(
            self.name,
            rows.schema,
            aggregates,
            is_revised=self._lateness is not None,
            needs_event_time=not self._is_by_clock,
        )
        is_keyed = bool(aggregation.stream.key_columns)
        if rows.exchange in (Exchange.BY_KEY, Exchange.BROADCAST):
            # The step's own edge by key sends the rows, or partials of them.
            rows = rows.sent(Exchange.FORWARD)
        if isinstance(self._window, SessionWindow):
            if not is_keyed:
                rows = self._with_one_key(operator, rows)
            spec = self._session_spec(aggregation)
        else:
            combiner, spec = self._pane_specs(operator, aggregation)
            producer = builder.add_step(f"{operator}-combiner", combiner, [rows])
            rows = builder.port(producer)
        parallelism = self._parallelism
        if parallelism is None and not is_keyed:
            parallelism = 1
        keyed = rows.sent_by(aggregation.keys)
        builder.place(operator, spec, [keyed], parallelism=parallelism)
        names = [LATE, BAD] if self._diverts_bad else [LATE]
        if self._is_by_clock:
            names = []
        # Late and bad rows are found where rows are assigned to windows.
        return builder.port(operator), {n: builder.port(producer, n) for n in names}

    def _session_spec(self, aggregation: WindowAggregation) -> OperatorSpec:
        """Return the operator of session windows."""
        gap, shown = self._lengths["gap"], str(self._window)
        diverts_bad = self._diverts_bad
        if self._lateness is None:
            return session_window_spec(
                gap, aggregation, shown=shown, diverts_bad=diverts_bad
            )
        return revised_session_spec(
            gap,
            aggregation,
            lateness_micros=self._lateness,
            shown=shown,
            diverts_bad=diverts_bad,
        )

    def _pane_specs(
        self, operator: OperatorId, aggregation: WindowAggregation
    ) -> tuple[OperatorSpec, OperatorSpec]:
        """Return the combiner and the operator of tumbling and sliding windows."""
        lengths, shown = self._lengths, str(self._window)
        grid = WindowGrid(lengths["width"], lengths["slide"], lengths["offset"])
        if self._is_by_clock:
            return clock_window_specs(grid, aggregation, consumer=operator, shown=shown)
        shared: dict[str, Any] = {
            "consumer": operator,
            "shown": shown,
            "diverts_bad": self._diverts_bad,
        }
        if self._lateness is None and not aggregation.stream.is_changelog:
            return pane_window_specs(grid, aggregation, **shared)
        return changing_window_specs(
            grid, aggregation, lateness_micros=self._lateness, **shared
        )

    def _with_one_key(self, operator: OperatorId, rows: Port) -> Port:
        """Return rows with a key that is the same for all of them, to be sent by."""
        if ALL_ROWS in rows.schema.arrow.names:
            raise SchemaError(
                f"window {str(operator)!r} cannot be computed: column {ALL_ROWS!r} has the "
                "name of a column that sessions of all rows add: rename it",
                operator=str(operator),
            )
        key = pl.lit(KEY_OF_ALL_ROWS, pl.Int64).alias(ALL_ROWS)
        step = with_columns_spec(key)
        return self._builder.port(self._builder.add_step(f"{operator}-rows", step, [rows]))


def _compile(
    name: str,
    stream: StreamSchema,
    aggregates: Mapping[str, Aggregate],
    *,
    is_revised: bool,
    needs_event_time: bool,
) -> WindowAggregation:
    """Bind aggregates to a stream, or raise with all that is wrong with either."""
    problems = find_stream_problems(stream, needs_event_time=needs_event_time)
    plan, keys = None, stream.key_columns
    taken = [*keys, *OWN_COLUMNS]
    if is_revised or stream.is_changelog:
        problems += find_name_problems(stream)
        taken += [CHANGE_COLUMN, *STATE_COLUMNS]
    try:
        if stream.is_changelog:
            plan = compile_changed(name, aggregates, stream, taken)
        else:
            plan = compile_aggregates(name, aggregates, stream, taken=taken, keys=keys)
    except SchemaError as error:
        problems.append(error.message)
    if plan is None or problems:
        raise SchemaError(
            f"window {name!r} cannot be computed:\n  " + "\n  ".join(problems),
            operator=name,
        )
    kind = ChangedAggregation if stream.is_changelog else WindowAggregation
    return kind(stream, plan)


def add_updating_aggregate(
    builder: GraphBuilder,
    rows: Port,
    name: str,
    aggregates: Mapping[str, Any],
    *,
    ttl: DurationLike | None,
    ttl_domain: TimeDomain | str | None,
    parallelism: int | None,
) -> Port:
    """Add a combiner and an updating aggregate behind a stream; return the changelog.

    All rows of a stream without a key have one result.
    """
    operator = builder.claim(name)
    if isinstance(ttl, str) and ttl == FOREVER:
        ttl = None
    elif ttl is None and not rows.schema.is_changelog:
        _warn_of_growth(name, aggregates)
    ttl_micros = expiry = domain = None
    with builder.problems.noting():
        ttl_micros = None if ttl is None else to_micros(ttl, "ttl")
    with builder.problems.noting():
        if ttl_domain is not None:
            domain = to_time_domain(ttl_domain, "ttl_domain", where=repr(name))
    stream, keys = rows.schema, rows.schema.key_columns
    if stream.is_changelog:
        if ttl is not None or ttl_domain is not None:
            raise UserError(
                f"{name!r} follows a changelog, which says itself when rows are gone: leave ttl "
                "out, or give it to the step that makes the changelog",
                code=ErrorCode.INVALID_CONFIG,
                operator=name,
            )
        return _add_retracting_aggregate(builder, rows, operator, aggregates, parallelism)
    if ttl_micros is not None:
        with builder.problems.noting():
            expiry = Expiry.of(ttl_micros, domain, stream)
            if LAST_SEEN in keys:
                raise SchemaError(
                    f"{name!r}: the key column {LAST_SEEN!r} is called like a column of its "
                    "state: rename it",
                    operator=name,
                )
    taken = (*keys, CHANGE_COLUMN)
    plan = compile_aggregates(name, aggregates, stream, taken=taken, keys=keys)
    if expiry is not None and (hidden := expiry.hidden_aggregates(stream)):
        kept = compile_aggregates(name, hidden, stream, keys=keys)
        plan = AggregatePlan((*plan.aggregates, *kept.aggregates))
    whole = rows
    if rows.exchange in (Exchange.BY_KEY, Exchange.BROADCAST):
        whole = replace(rows, exchange=Exchange.FORWARD, schema=stream.keyed_by())
    combined = builder.add_step(
        builder.name_for("combine"),
        combine_spec(plan, keys, expiry, stream.time_column),
        [whole],
    )
    partials = builder.port(combined).sent_by(
        partial_schema(plan, keys, stream).key_columns
    )
    spec = updating_aggregate_spec(plan, partials.schema, expiry)
    if parallelism is None and not keys:
        parallelism = 1
    builder.place(operator, spec, [partials], parallelism=parallelism)
    return builder.port(operator)


def _warn_of_growth(name: str, aggregates: Mapping[str, Any]) -> None:
    """Name the aggregates whose state grows with the rows of a key, because no key is deleted."""
    growing = [
        f"{result}={given.display()}"
        for result, given in aggregates.items()
        if isinstance(given, Aggregate) and given.keeps_all_values
    ]
    if growing:
        _log.warning(
            "aggregate %r keeps all values of %s for ever, so its state grows with them. Give it "
            "ttl='1d' or the like, aggregate in windows, or say that it is meant: ttl='forever'",
            name,
            ", ".join(growing),
        )


def _add_retracting_aggregate(
    builder: GraphBuilder,
    rows: Port,
    operator: OperatorId,
    aggregates: Mapping[str, Any],
    parallelism: int | None,
) -> Port:
    """Add a combiner and an aggregate behind a changelog; return the changelog of results."""
    stream, keys = rows.schema, rows.schema.key_columns
    taken = (*keys, CHANGE_COLUMN)
    plan = compile_changes(str(operator), aggregates, stream, taken=taken, keys=keys)
    if not keys and ALL_ROWS in plan.values:
        raise SchemaError(
            f"{str(operator)!r}: column {ALL_ROWS!r} has the name of a column that aggregates "
            "of all rows add: rename it",
            operator=str(operator),
        )
    whole = rows
    if rows.exchange in (Exchange.BY_KEY, Exchange.BROADCAST):
        whole = replace(rows, exchange=Exchange.FORWARD, schema=stream.keyed_by())
    combined = builder.add_step(
        builder.name_for("combine"),
        combine_changes_spec(plan.arithmetic, keys, plan.values),
        [whole],
    )
    changes = builder.port(combined)
    changes = changes.sent_by(keys or (ALL_ROWS,))
    spec = retracting_aggregate_spec(plan, changes.schema)
    if parallelism is None and not keys:
        parallelism = 1
    builder.place(operator, spec, [changes], parallelism=parallelism)
    return builder.port(operator)
