"""VersionLookup: rows with what the last version of a table says about their key.

The second input brings a table whole, in parts, in the epochs in which it has changed; every
subtask gets all of it. It replaces what was there before, and the rows of its epoch are looked up
in it, whichever input came first. The first subtask keeps the parts in a global table, so
that a job goes on with the version that it had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from penstock.core.figures import show_duration
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, InternalError, UserError
from penstock.operators.context import OperatorContext
from penstock.operators.joins.lookup_join import LookupConfig
from penstock.operators.joins.stream_lookup import HeldLookup
from penstock.operators.joins.version_source import PART, PARTS, ROWS, VERSION_SCHEMA


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
