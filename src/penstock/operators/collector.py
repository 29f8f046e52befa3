"""Collectors: where operators put their rows, checked against the declared schema.

A collector belongs to one operator of one subtask. It is open from the start of an epoch to
the operator's `handle_checkpoint`; rows emitted later would be in no checkpoint.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.core.batch import RowsLike, to_batches
from penstock.core.schema import StreamSchema
from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import MAIN
from penstock.operators.splits import BudgetMeter


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
        an output that nobody reads are counted and dropped. No rows are no error.
        """
        schema = self._schemas.get(output)
        if schema is None or not self._is_open:
            raise self._refusal(output)
        try:
            batches = to_batches(rows, schema)
        except (SchemaError, pa.ArrowException) as error:
            raise SchemaError(
                f"operator {self._operator!r} emitted rows that do not fit its output "
                f"{output!r}: {error}. Emit what output_schema declares, or declare what is "
                "emitted",
                operator=self._operator,
                output=output,
            ) from error
        for batch in batches:
            self.rows_emitted[output] += batch.num_rows
            for target in self._targets[output]:
                target.take(batch)

    def _refusal(self, output: str) -> UserError:
        if output not in self._schemas:
            known = ", ".join(map(repr, self._schemas)) or "none: it is a sink"
            return UserError(
                f"operator {self._operator!r} has no output {output!r}"
                f"{did_you_mean(output, self._schemas)}; it has: {known}. Declare it in "
                "side_outputs",
                code=ErrorCode.UNKNOWN_OUTPUT,
                operator=self._operator,
                output=output,
            )
        return UserError(
            f"operator {self._operator!r} emitted rows outside of its epoch: after "
            "handle_checkpoint its state is written, so these rows would be in no checkpoint. "
            "Emit from the hooks only, not from threads or release()",
            code=ErrorCode.EMITTED_AFTER_CLOSE,
            operator=self._operator,
            output=output,
        )


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
        self.max_event_times: dict[str | None, int] = {}
        """The latest event time emitted in this epoch by split."""
        self.active_splits: set[str | None] = set()

    def open(self, outlets: Mapping[str, Sequence[Target]]) -> None:
        """Start an epoch."""
        super().open(outlets)
        self.max_event_times.clear()
        self.active_splits.clear()

    def collect(
        self, rows: RowsLike, output: str = MAIN, *, split: str | None = None
    ) -> None:
        """Emit rows of a split; None is right for a source with only one."""
        before = self.rows_emitted[output]
        if output == MAIN:
            self._note(rows, split)
        super().collect(rows, output)
        self.budget.spend(
            self.rows_emitted[output] - before, int(getattr(rows, "nbytes", 0))
        )

    def _note(self, rows: RowsLike, split: str | None) -> None:
        self.active_splits.add(split)
        if self._stream.time_column is None or not isinstance(
            rows, pa.RecordBatch | pa.Table
        ):
            return
        if rows.num_rows and self._stream.time_column in rows.schema.names:
            latest = int(np.max(self._stream.event_times_of(rows)))
            known = self.max_event_times.get(split)
            self.max_event_times[split] = latest if known is None else max(known, latest)
