"""Aggregate: what a user asks for, such as `ps.sum("price")`; compiled against a stream."""

from abc import ABC, abstractmethod

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.operators.aggregates.plan import CompiledAggregate


class Aggregate(ABC):
    """One aggregate. Immutable, pickles; knows no stream until it is compiled."""

    @abstractmethod
    def compile(self, name: str, stream: StreamSchema) -> CompiledAggregate:
        """Return how to compute it over rows of a stream; `name` is the column of the result.

        Raises `SchemaError` for a column that is missing or of a type that does not fit.
        """

    @abstractmethod
    def display(self) -> str:
        """Return how it is written: `sum(price)`."""


def partial_field(result: str, part: str, data_type: pa.DataType) -> pa.Field[pa.DataType]:
    """Return a column of partials; the name tells whose it is when somebody reads the state."""
    return pa.field(f"{result}.{part}", data_type)
