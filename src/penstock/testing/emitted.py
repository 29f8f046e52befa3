"""Emitted: the rows that came out of operators under test, by output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.core.signals import Watermark
from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import MAIN
from penstock.operators.source import SourceFinishType


class Emitted:
    """Rows by output, in order of epoch, then subtask, then emission."""

    def __init__(self, outputs: Mapping[str, StreamSchema]) -> None:
        self._outputs = outputs
        self._batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in outputs}

    def rows(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output as dictionaries."""
        return [row for batch in self.batches(output) for row in batch.to_pylist()]

    def batches(self, output: str = MAIN) -> list[pa.RecordBatch]:
        """Return the rows of an output as they were emitted."""
        self._check(output)
        return list(self._batches[output])

    def table(self, output: str = MAIN) -> pa.Table:
        """Return the rows of an output as one table."""
        schema = self._stream(output).schema
        return pa.Table.from_batches(self._batches[output], schema)

    def take(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output and forget them."""
        rows = self.rows(output)
        self._batches[output] = []
        return rows

    def add(self, output: str, batch: pa.RecordBatch) -> None:
        """Note what was emitted."""
        self._batches[output].append(batch)

    def extend(self, other: "Emitted") -> None:
        """Note everything that another one holds."""
        for output, batches in other._batches.items():  # noqa: SLF001 (of the same class)
            self._batches[output] += batches

    def _stream(self, output: str) -> StreamSchema:
        self._check(output)
        return self._outputs[output]

    def _check(self, output: str) -> None:
        if output not in self._outputs:
            known = ", ".join(map(repr, self._outputs)) or "none: it is a sink"
            raise UserError(
                f"there is no output {output!r}{did_you_mean(output, self._outputs)}; there "
                f"is: {known}",
                code=ErrorCode.UNKNOWN_OUTPUT,
                output=output,
            )


@dataclass(slots=True)
class EpochOutput:
    """What one epoch of operators under test gave."""

    epoch: int
    emitted: Emitted
    watermark: Watermark | None
    """What the last operator passed on, merged over its subtasks."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What `ctx.count` counted, over all operators and subtasks."""
    wake_up_micros: int | None = None
    """When the operators want to run again even if no data comes."""
    finish: SourceFinishType | None = None
    """What a source said about going on."""

    def rows(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output as dictionaries."""
        return self.emitted.rows(output)

    def batches(self, output: str = MAIN) -> list[pa.RecordBatch]:
        """Return the rows of an output as they were emitted."""
        return self.emitted.batches(output)

    def table(self, output: str = MAIN) -> pa.Table:
        """Return the rows of an output as one table."""
        return self.emitted.table(output)
