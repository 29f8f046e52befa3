"""A sink that prints rows on the driver, epoch by epoch, once they are acknowledged.

At-least-once: what was printed cannot be looked up, so a commit that is repeated (after a
crash between printing and noting that it was done) prints its epoch's rows again.

A sink that takes every row and keeps none: to measure or warm up what comes before it.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.memory import StagingSink, staged_tables
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import CommitContext, OperatorContext
from penstock.operators.operator import ArrowOperator, DisplayableOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry

Format = Literal["json", "table"]


def stdout(form: Format = "json") -> OperatorSpec:
    """Print rows: a line of JSON each, or a table per epoch."""
    return OperatorSpec("stdout", {"format": form})


class StdoutSink(StagingSink):
    """Prints rows to the driver's standard output."""

    def __init__(self, form: Format) -> None:
        super().__init__()
        self._format = form

    @override
    def name(self) -> str:
        return "stdout"

    @override
    def display(self) -> DisplayableOperator:
        return DisplayableOperator("stdout", {"format": self._format})

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
            text = to_json_lines(rows) if self._format == "json" else to_text(rows)
            sys.stdout.write(text)
            sys.stdout.flush()


def to_json_lines(rows: pa.Table) -> str:
    """Return a JSON object per row; what JSON has no form for is written as text."""
    lines = [json.dumps(row, default=str, ensure_ascii=False) for row in rows.to_pylist()]
    return "".join(f"{line}\n" for line in lines)


def to_text(rows: pa.Table) -> str:
    """Return all rows as a table for people."""
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True):
        return f"{pl.DataFrame(rows)}\n"


@dataclass(frozen=True, slots=True)
class StdoutConfig:
    """The config of kind "stdout"."""

    format: Format = "json"


class StdoutConstructor(OperatorConstructor[StdoutConfig]):
    """Builds sinks that print."""

    config_type = StdoutConfig

    @override
    def with_config(self, config: StdoutConfig, registry: Registry) -> ConstructedOperator:
        return ConstructedOperator(StdoutSink(config.format))


def blackhole() -> OperatorSpec:
    """Drop every row. The job's status still counts what came in."""
    return OperatorSpec("blackhole")


class Blackhole(ArrowOperator):
    """Drops rows. It has no state, and nothing of it is ever committed."""

    @override
    def name(self) -> str:
        return "blackhole"

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Return None: it is a sink."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Let the rows go."""


@dataclass(frozen=True, slots=True)
class BlackholeConfig:
    """The config of kind "blackhole": there is nothing to choose."""


class BlackholeConstructor(OperatorConstructor[BlackholeConfig]):
    """Builds sinks that drop."""

    config_type = BlackholeConfig

    @override
    def with_config(
        self, config: BlackholeConfig, registry: Registry
    ) -> ConstructedOperator:
        return ConstructedOperator(Blackhole())
