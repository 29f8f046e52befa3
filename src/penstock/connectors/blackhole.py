"""A sink that takes every row and keeps none: to measure or warm up what comes before it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry


def blackhole() -> OperatorSpec:
    """Drop every row. The job's status still counts what came in."""
    return OperatorSpec("blackhole")


class Blackhole(ArrowOperator):
    """Drops rows. It has no state, and nothing of it is ever committed."""

    def name(self) -> str:
        """Return the kind."""
        return "blackhole"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Return None: it is a sink."""
        del inputs

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

    def with_config(
        self, config: BlackholeConfig, registry: Registry
    ) -> ConstructedOperator:
        """Build one."""
        del config, registry
        return ConstructedOperator(Blackhole())
