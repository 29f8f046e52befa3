"""Collectors: where operators put their rows, checked against the declared schema.

A collector belongs to one operator of one subtask. It is open from the start of an epoch to
the operator's `handle_checkpoint`; rows emitted later would be in no checkpoint.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import RowsLike, to_batches
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.graph.logical import MAIN
from penstock.operators.splits import BudgetMeter, Deadline


class Target(Protocol):
    """Whatever takes the rows of an output: the next operator of the chain, or an exchange."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Take some rows; never empty."""
        ...


class ArrowCollector:
    """Takes what an operator emits and passes it on at once."""

    def __init__(
        self,
        operator: str,
        outputs: Mapping[str, StreamSchema],
        targets: Mapping[str, Sequence[Target]],
    ) -> None:
        self._operator = operator
        self._schemas = {name: stream.schema for name, stream in outputs.items()}
        self._chained = {name: tuple(targets.get(name, ())) for name in outputs}
        self._targets = self._chained
        self._is_open = False
        self.rows_emitted: Counter[str] = Counter()

    def open(self, outlets: Mapping[str, Sequence[Target]]) -> None:
        """Start an epoch: rows go to the next operators of the chain and to these besides."""
        self.rows_emitted = Counter()
        self._targets = {
            name: (*chained, *outlets.get(name, ()))
            for name, chained in self._chained.items()
        }
        self._is_open = True

    def close(self) -> None:
        """End an epoch: the operator's state is about to be written."""
        self._is_open = False

    def collect(self, rows: RowsLike, output: str = MAIN) -> None:
        """Emit rows: a record batch, an Arrow table or a Polars frame of the output's schema.

        Layouts such as large strings are converted; other differences are an error. Rows for
        an output without a reader are counted and dropped. No rows are no error.
        """
        self._emit(self._conform(rows, output), output)

    def _conform(self, rows: RowsLike, output: str) -> list[pa.RecordBatch]:
        """Return rows in the form the output declares, or refuse them."""
        schema = self._schemas.get(output)
        if schema is None:
            known = "; it is a sink"
            if self._schemas:
                known = did_you_mean(output, self._schemas) + ". Declare it in side_outputs"
            raise UserError(
                f"operator {self._operator!r} has no output {output!r}{known}",
                code=ErrorCode.UNKNOWN_OUTPUT,
                operator=self._operator,
                output=output,
            )
        if not self._is_open:
            raise UserError(
                f"operator {self._operator!r} emitted rows outside of its epoch: after "
                "handle_checkpoint its state is written, so these rows would be in no "
                "checkpoint. Emit from the hooks only, not from threads or release()",
                code=ErrorCode.EMITTED_AFTER_CLOSE,
                operator=self._operator,
                output=output,
            )
        try:
            return to_batches(rows, schema)
        except (SchemaError, pa.ArrowException) as error:
            raise SchemaError(
                f"operator {self._operator!r} emitted rows that do not fit its output "
                f"{output!r}: {error}. Emit what output_schema declares, or declare what is "
                "emitted",
                operator=self._operator,
                output=output,
            ) from error

    def _emit(self, batches: Sequence[pa.RecordBatch], output: str) -> None:
        for batch in batches:
            self.rows_emitted[output] += batch.num_rows
            for target in self._targets[output]:
                target.take(batch)


class SourceCollector(ArrowCollector):
    """Also counts against the budget, and notes the latest event time of every split."""

    def __init__(
        self,
        operator: str,
        outputs: Mapping[str, StreamSchema],
        targets: Mapping[str, Sequence[Target]],
    ) -> None:
        super().__init__(operator, outputs, targets)
        self._stream = outputs[MAIN]
        self.budget: BudgetMeter
        self.deadline = Deadline()
        self.max_event_times: dict[str | None, int] = {}
        """The latest event time emitted in this epoch by split."""
        self.active_splits: set[str | None] = set()

    @override
    def open(self, outlets: Mapping[str, Sequence[Target]]) -> None:
        super().open(outlets)
        self.max_event_times.clear()
        self.active_splits.clear()

    @override
    def collect(
        self, rows: RowsLike, output: str = MAIN, *, split: str | None = None
    ) -> None:
        """Emit rows of a split; None is right for a source with only one."""
        self.deadline.check()
        batches = self._conform(rows, output)
        for batch in batches:
            if output == MAIN:
                self._note(batch, split)
            self.budget.spend(batch.num_rows, batch.nbytes)
        with self.deadline.paused():
            self._emit(batches, output)

    def _note(self, batch: pa.RecordBatch, split: str | None) -> None:
        self.active_splits.add(split)
        if self._stream.time_column is None:
            return
        times = batch.column(self._stream.time_column)
        # What becomes of rows without a time is up to the operators that need one.
        timed = batch.filter(times.is_valid()) if times.null_count else batch
        if not timed.num_rows:
            return
        try:
            latest = int(np.max(self._stream.event_times_of(timed)))
        except SchemaError as error:
            raise SchemaError(
                f"source {self._operator!r} emitted rows whose event time cannot be told: "
                f"{error.message}",
                operator=self._operator,
                split=split,
            ) from error
        known = self.max_event_times.get(split)
        self.max_event_times[split] = latest if known is None else max(known, latest)
