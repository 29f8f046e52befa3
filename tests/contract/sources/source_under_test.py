"""What a source gives to the contract suite of sources: its data, and what it cannot promise.

A connector adds itself in two steps: a subclass of `SourceUnderTest` in a file beside this one,
and that class in `SOURCES` of `conftest.py`, with the marks that its server needs. All tests of
`test_source_contract.py` then run against it. The rows of the suite are numbered; a row's event
time is its number in seconds. A line of the contract that a source cannot promise stands in
`cannot`, with the reason, which its page for users tells as well; the tests of that line are
skipped with the reason. Whoever cannot promise `Line.REPLAY` must also say so to the engine
(`is_rewindable`), which warns the user at every start.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
import pytest

from penstock.graph.logical import BAD, OperatorSpec
from tests.builders.graphs import schema_of

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = schema_of(n=pa.int64(), s=pa.string(), at=pa.timestamp("us", "UTC"))
"""The columns of the suite's rows; a source may have more."""


class Line(Enum):
    """A line of the contract."""

    PLANNING = "split planning"
    RESUME = "resume"
    RESCALE = "rescale"
    REPLAY = "replay identical"
    BUDGET = "budget"
    IDLE = "idle"
    END = "end"
    BAD_ROWS = "bad rows"
    DRIFT = "schema drift"
    EVENT_TIME = "watermarks by a column"


class Drift(Enum):
    """How rows differ from the schema that the source was declared with."""

    NEW_COLUMN = "a column more"
    MISSING_COLUMN = "a column less"
    OTHER_TYPE = "text in the place of a number"


def row_of(n: int) -> dict[str, Any]:
    """Return the row of a number."""
    return {"n": n, "s": f"row {n}", "at": EPOCH + timedelta(seconds=n)}


class SourceUnderTest(ABC):
    """One source with data of its own, empty at first. Used by one test."""

    name: ClassVar[str]
    cannot: ClassVar[Mapping[Line, str]] = {}
    """The lines that the source cannot promise, with the reason."""
    smallest_piece: ClassVar[int] = 1
    """How many rows of the suite are read together, whatever the budget says."""
    is_bound_at_first: ClassVar[bool] = True
    """Whether the first epoch fixes where a bounded source ends."""
    leaves_rows_out: ClassVar[bool] = False
    """Whether an epoch may read rows and give none of them."""
    bad_output: ClassVar[str] = BAD
    poll: ClassVar[str] = "1s"
    """After how much processing time rows that were written are found."""

    def __init__(self, folder: Path) -> None:
        """Make it below an empty folder, or in a place of the server that no other uses."""
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, request: pytest.FixtureRequest) -> Self:
        """Make it; `request` gives fixtures, such as a running server."""
        del request
        return cls(folder)

    @abstractmethod
    def write(self, numbers: Sequence[int]) -> None:
        """Add the rows of these numbers, in one go: as a file, a commit, some messages."""

    @abstractmethod
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        """Return the source: it ends with what was written so far, or follows what comes.

        Its event time column is `at`.
        """

    def number_of(self, row: Mapping[str, Any]) -> int:
        """Return the number of a row that was read."""
        return int(row["n"])

    def order_group(self, number: int) -> Hashable:
        """Return what rows must have in common to be read in the order in which they came.

        It is the split, for a source whose splits are known by the row. Rows of one `write`.
        """
        del number
        return None

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Check a row that was read; columns besides those of the suite are the source's own."""
        wanted = row_of(self.number_of(row))
        assert {name: row[name] for name in wanted} == wanted

    def folded(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the suite that those which were read lead to: of a changelog, its table."""
        return rows

    def write_bad(self, count: int) -> None:
        """Add records that are no rows, in one go."""
        raise NotImplementedError(self.name)

    def write_drifted(self, numbers: Sequence[int], drift: Drift) -> None:
        """Add rows that differ from the schema, in one go; `s` is the column that does."""
        raise NotImplementedError(self.name)

    def close(self) -> None:  # noqa: B027 (most have nothing to remove)
        """Remove what was made on a server."""
