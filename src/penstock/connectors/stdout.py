"""Two sinks that write no files: `stdout` prints rows, `blackhole` drops them.

`stdout` prints on the driver, epoch by epoch, when each is acknowledged. It delivers at least
once: a commit that is repeated, after a crash between printing and writing the committed
marker, prints its epoch's rows again, because what was printed cannot be looked up.

`blackhole` takes every row and keeps none, to measure or warm up the steps before it.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.memory import StagingSink, staged_tables
from penstock.core.batch import to_rows
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.spellings import check_choice
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import ArrowCollector, CommitContext, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig

Format = Literal["json", "table"]


@dataclass(frozen=True, slots=True)
class StdoutConfig(OperatorConfig):
    """The config of sinks that print."""

    kind: ClassVar[str] = "stdout"

    format: Format = "json"

    @override
    def shown(self) -> Mapping[str, str]:
        return {"format": self.format}


def stdout(form: Format = "json") -> OperatorSpec:
    """Print rows: a line of JSON each, or with the `form` "table" a table per epoch."""
    check_choice("form", form, get_args(Format), where="stdout: ")
    return StdoutConfig(form).to_operator_spec()


class StdoutSink(Configured[StdoutConfig], StagingSink):
    """Prints rows to the driver's standard output."""

    @override
    def why_at_least_once(self) -> str:
        return (
            "what was printed cannot be looked up, so an epoch is printed again if the job dies "
            "after printing it and before noting that"
        )

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Print the epoch's rows in order of subtask."""
        tables = staged_tables(commit_data)
        if tables:
            rows = pa.concat_tables(tables)
            text = to_json_lines(rows) if self.config.format == "json" else to_text(rows)
            sys.stdout.write(text)
            sys.stdout.flush()


def to_json_lines(rows: pa.Table) -> str:
    """Return a JSON object per row; a value that JSON has no form for becomes text."""
    lines = [json.dumps(row, default=str, ensure_ascii=False) for row in to_rows(rows)]
    return "".join(f"{line}\n" for line in lines)


def to_text(rows: pa.Table) -> str:
    """Return all rows as a table that people can read."""
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True):
        return f"{pl.DataFrame(rows)}\n"


@dataclass(frozen=True, slots=True)
class BlackholeConfig(OperatorConfig):
    """The config of sinks that drop rows: there is nothing to choose."""

    kind: ClassVar[str] = "blackhole"


def blackhole() -> OperatorSpec:
    """Drop every row. The job's status still counts what came in."""
    return BlackholeConfig().to_operator_spec()


class Blackhole(Configured[BlackholeConfig], ArrowOperator):
    """Drops rows. It has no state and commits nothing."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Return None: it is a sink."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Drop the rows."""
