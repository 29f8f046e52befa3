"""RevisedSessions: sessions with allowed lateness, emitted again when rows come late.

A session that closes is emitted and kept until the watermark is beyond its end by the allowed
lateness. A row that is late by no more than that changes it, as a row on time would have:

| a late row | is emitted as |
|---|---|
| lies within a session that was emitted | an update of it |
| extends one | the delete of it; the longer session is inserted once it has closed |
| joins two | the deletes of both, and the insert of one |
| is near none | the insert of a session of its own |

State is that of sessions, with a mark for those that were emitted. What an emitted session takes
back is computed of its kept partials, as it was when it was emitted, so both are equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.watermark import Watermark
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.frames import to_batch
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.updating.aggregate import to_result_changes
from penstock.operators.windows.aggregation import WindowAggregation, WindowConfig
from penstock.operators.windows.assignment import find_length_problems
from penstock.operators.windows.changed_rows import IS_EMITTED
from penstock.operators.windows.changing import (
    aligned_results,
    hold_back,
    results_in_rows,
    shown_lateness,
)
from penstock.operators.windows.session_merging import KEY, LAST, SESSION, SIZE, START
from penstock.operators.windows.sessions import (
    SessionStore,
    SessionWindowConfig,
    SessionWindows,
)

_PLACE = f"{CHANGE_COLUMN}.place"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisedSessionConfig(SessionWindowConfig):
    """The config of session windows with allowed lateness."""

    kind: ClassVar[str] = "revised_session_window"

    lateness_micros: int

    @override
    def shown(self) -> Mapping[str, str]:
        return {**WindowConfig.shown(self), **shown_lateness(self.lateness_micros)}


def revised_session_spec(
    gap_micros: int,
    aggregation: WindowAggregation,
    *,
    lateness_micros: int,
    shown: str,
    diverts_bad: bool,
) -> OperatorSpec:
    """Return the operator of a step; its input must be keyed by `aggregation.keys`."""
    return RevisedSessionConfig(
        window=shown,
        stream=aggregation.stream.to_bytes(),
        aggregates=aggregation.plan.to_config(),
        gap_micros=gap_micros,
        diverts_bad=diverts_bad,
        lateness_micros=lateness_micros,
    ).to_operator_spec()


class RevisedSessions(SessionWindows):
    """Keeps sessions until no row may change them, and emits how they change."""

    def __init__(self, config: RevisedSessionConfig) -> None:
        super().__init__(config)
        config.refuse(find_length_problems({"lateness": config.lateness_micros}))
        self._lateness = config.lateness_micros
        computed = ", ".join(
            sorted(
                f"{a.result.name}={a.meaning.outline}"
                for a in self._aggregation.plan.aggregates
            )
        )
        self._store = SessionStore(
            self._aggregation,
            config.window,
            more=[pa.field(IS_EMITTED, pa.bool_())],
            # What is taken back of a session is what was said of it, and ends where it ended.
            meaning=f"{computed} of sessions of a gap of {self._gap} us, kept {self._lateness} us "
            "after their end",
        )

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return self._aggregation.revisions

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        """Hold the watermark back by the lateness, so that no change is late for steps behind."""
        return hold_back(watermark, self._lateness)

    @override
    def settle(
        self,
        sessions: pl.DataFrame,
        known: pl.DataFrame,
        watermark: int | None,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit how emitted sessions change, and keep all that rows may still change."""
        emitted = known.filter(pl.col(IS_EMITTED))
        sizes = sessions.select(SESSION, SIZE)
        before = emitted.join(sizes, on=SESSION).filter(pl.col(SIZE) > 1)
        # A session of one member that was emitted is as it was.
        is_same = (pl.col(SIZE) == 1) & pl.col(SESSION).is_in(emitted[SESSION].implode())
        is_closed, ends = self._is_closed(watermark), pl.col(LAST) + self._gap
        after = sessions.filter(is_closed & ~is_same)
        if before.height or after.height:
            self._emit_changes(before, after, ctx, collector)
        is_over = pl.lit(value=False)
        if watermark is not None:
            is_over = ends + self._lateness < watermark
        kept = sessions.with_columns(is_closed.alias(IS_EMITTED)).filter(~is_over)
        due = ends + pl.when(IS_EMITTED).then(self._lateness).otherwise(0)
        self._keep(kept, known, due, watermark, ctx)

    def _emit_changes(
        self,
        before: pl.DataFrame,
        after: pl.DataFrame,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit the changes from some emitted sessions to others in their place."""
        aggregation = self._aggregation
        names = [*aggregation.keys, KEY, START, LAST]
        both = pl.concat(
            [before.select(names).cast(after.select(names).schema), after.select(names)]
        )
        # Sessions are the same if key, start and end are.
        first = both.with_row_index(_PLACE).select(
            pl.col(_PLACE).first().over(KEY, START, LAST)
        )
        firsts, places = np.unique(first.to_series().to_numpy(), return_inverse=True)
        old, new = places[: before.height], places[before.height :]
        results_before, was = aligned_results(
            results_in_rows(aggregation, before), old, len(firsts)
        )
        results_after, is_there = aligned_results(
            results_in_rows(aggregation, after), new, len(firsts)
        )
        ends = pl.col(LAST) + self._gap
        windows = aggregation.with_windows(both[firsts], pl.col(START), ends, ends)
        fields = pa.schema([*aggregation.key_fields, *aggregation.window_fields])
        changes = to_result_changes(
            ctx.outputs[MAIN].arrow,
            to_batch(windows, fields),
            (results_before, results_after),
            (was, is_there),
            list(aggregation.finished.results),
        )
        collector.collect(changes)
