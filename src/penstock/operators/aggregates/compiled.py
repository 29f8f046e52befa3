"""CompiledAggregate: one aggregate over columns that exist and fit it, ready to be computed.

It travels in a graph as plain data: Arrow serialises its fields, Polars its expressions. What
it means is recorded in checkpoints beside its partials, so that partials of another meaning are
never merged with them.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.errors import ErrorCode, PenstockError, UserError
from penstock.operators.user_functions import to_failure
from penstock.state.tables.column_groups import ColumnGroup, Meaning

Kind: TypeAlias = Literal["count", "sum", "float_sum", "min", "max", "zero"]
End: TypeAlias = Literal["first", "last"]
"""An end of the values of a group in order."""
_READ_ERRORS = (pl.exceptions.PolarsError, pa.ArrowException, ValueError, TypeError)
_UNFIT = ("conversion from", "overflow")
"""How Polars begins its errors about values that do not fit a type."""


class Reduction(NamedTuple):
    """The reduction of a column within a group, or of the rows themselves without a column."""

    kind: Kind
    column: str | None


@dataclass(frozen=True, slots=True)
class AggregateConfig:
    """One compiled aggregate in the config of an operator."""

    shown: str
    reads: tuple[str, ...]
    fields: bytes
    """The result, then the partials: an Arrow schema in its IPC form."""
    from_rows: tuple[bytes, ...]
    """Each is the result of `Expr.meta.serialize`, as in the fields below."""
    from_partials: tuple[bytes, ...]
    finish: bytes
    from_pair: tuple[bytes, ...] | None = None
    reductions: tuple[Reduction, ...] | None = None
    step: str = ""
    settled: tuple[bytes, ...] | None = None
    of_no_rows: bytes = b""
    """One row of partials: an Arrow stream in its IPC form."""
    meaning: tuple[str, str, str] = ("", "", "")
    was: tuple[str, ...] = ()
    unmerged: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """One aggregate over columns that exist and fit it: the compiler has checked them."""

    result: "pa.Field[pa.DataType]"
    """The column of the result."""
    reads: tuple[str, ...]
    """The columns of the rows that it reads."""
    partials: tuple["pa.Field[pa.DataType]", ...]
    """The columns of its partials; each begins with the name of the result."""
    from_rows: tuple[pl.Expr, ...]
    """Computes the partials of a group of rows; one expression per column, in that order."""
    from_partials: tuple[pl.Expr, ...]
    """Computes the partials of a group of partials."""
    finish: pl.Expr
    """Computes the result from the partials of one row."""
    shown: str = ""
    """The aggregate as the user writes it: `sum(price)`."""
    from_pair: tuple[pl.Expr, ...] | None = None
    """As `from_partials`, for two rows side by side; `other_column` names the second's columns."""
    reductions: tuple[Reduction, ...] | None = None
    """The same as `from_rows`, if each of them is a plain reduction of a column."""
    step: str = ""
    """The step that computes it, for messages."""
    settled: tuple[pl.Expr, ...] | None = None
    """Makes partials of what the expressions above compute, row by row; None if they are those."""
    of_no_rows: bytes = b""
    """The partials of no rows: what state holds of keys that are older than the aggregate."""
    meaning: Meaning = Meaning("")  # noqa: RUF009 (it is immutable)
    """What it computes: state of another meaning cannot be gone on from."""
    was: tuple[str, ...] = ()
    """The names that its result may have in a checkpoint."""
    unmerged: tuple[pl.Expr, ...] | None = None
    """As `from_pair`, but takes the second row's partials out of the first's; None if it cannot."""

    def to_group(self) -> ColumnGroup:
        """Return its partials as columns of a table that may come and go."""
        columns = tuple(field.name for field in self.partials)
        name = self.result.name
        return ColumnGroup(
            name, columns, self.meaning, self.of_no_rows, self.was, "aggregate"
        )

    def failure(self, method: str, error: Exception) -> PenstockError:
        """Return the error to raise if computing it fails: it names the aggregate and its step."""
        if isinstance(error, PenstockError):
            return error
        shown = f"{self.result.name}={self.shown} of step {self.step!r}"
        reason = (str(error) or type(error).__name__).split("\n", maxsplit=1)[0]
        facts: dict[str, Any] = {"step": self.step, "aggregate": self.result.name}
        if isinstance(error, pl.exceptions.PolarsError) and reason.startswith(_UNFIT):
            # The column that Polars names is one of the state, which users do not know.
            reason = re.sub(r" in column '.*?'(?= for )", "", reason)
            return UserError(
                f"the aggregate {shown} has a value that does not fit its type: {reason}. Sums "
                "of whole numbers and durations have 64 bits, those of decimals 38 digits: cast "
                "the column to a decimal or a float before",
                code=ErrorCode.VALUE_OUT_OF_RANGE,
                **facts,
            )
        raised = f"raised {type(error).__name__} in {method}"
        message = f"the aggregate {shown} {raised}: {reason}"
        return to_failure(error, message, note=f"{shown} {raised}", **facts)

    def to_config(self) -> AggregateConfig:
        """Return it as plain data, so that workers need neither aggregate nor stream schema."""
        pair, settled, unmerged = self.from_pair, self.settled, self.unmerged
        return AggregateConfig(
            self.shown,
            self.reads,
            pa.schema([self.result, *self.partials]).serialize().to_pybytes(),
            tuple(e.meta.serialize() for e in self.from_rows),
            tuple(e.meta.serialize() for e in self.from_partials),
            self.finish.meta.serialize(),
            None if pair is None else tuple(e.meta.serialize() for e in pair),
            self.reductions,
            self.step,
            None if settled is None else tuple(e.meta.serialize() for e in settled),
            self.of_no_rows,
            (self.meaning.outline, self.meaning.expressions, self.meaning.dialect),
            self.was,
            None if unmerged is None else tuple(e.meta.serialize() for e in unmerged),
        )

    @classmethod
    def from_config(cls, config: AggregateConfig) -> "CompiledAggregate":
        """Return the aggregate that went into a config."""
        read, pair, settled = pl.Expr.deserialize, config.from_pair, config.settled
        unmerged = config.unmerged
        try:
            result, *partials = pa.ipc.read_schema(pa.py_buffer(config.fields))
            return cls(
                result,
                config.reads,
                tuple(partials),
                tuple(map(read, config.from_rows)),
                tuple(map(read, config.from_partials)),
                read(config.finish),
                config.shown,
                None if pair is None else tuple(map(read, pair)),
                config.reductions,
                config.step,
                None if settled is None else tuple(map(read, settled)),
                config.of_no_rows,
                Meaning(*config.meaning),
                config.was,
                None if unmerged is None else tuple(map(read, unmerged)),
            )
        except _READ_ERRORS as error:
            raise UserError(
                f"the aggregate {config.shown} cannot be read ({error}): it must come from the "
                "same versions of Polars and Arrow on driver and workers",
                code=ErrorCode.INVALID_CONFIG,
            ) from error


def other_column(name: str) -> str:
    """Return the name of a column of partials in the second of two rows side by side."""
    return f"{name}|other"
