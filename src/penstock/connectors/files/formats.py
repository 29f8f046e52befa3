"""FileFormat: the contract between the files source and a file format.

On the driver a format measures a file, so that the plan of an epoch says how far it is read:
`plan_files` makes it. In a task a format reads such a part in pieces. It decides nothing about
epochs, states or discovery.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa

from penstock.connectors.files.folders import Folders, read_folders
from penstock.connectors.formats.drift import DriftRules
from penstock.core.arrow_types import is_narrower
from penstock.core.batch import find_differences
from penstock.errors import ErrorCode, InternalError, SchemaError, UserError
from penstock.operators.splits import SourceBudget, SplitPlan
from penstock.state.storage.object_store import ObjectStore

FORMAT_NAMES = ("parquet", "jsonl", "csv", "text")
"""The formats of files; lines may also be records of a format that is shared with Kafka."""
OutputFormat = Literal["parquet", "jsonl"]
"""The formats that the files sink writes."""


class FileOffset(NamedTuple):
    """How far a file was read. Stored as a list, so fields are only ever appended."""

    size_bytes: int
    """The size of the whole file; if it differs later, the file was changed."""
    position: int = 0
    """The next row group of a Parquet file; in text, the byte at which the next row begins."""
    lines: int = 0
    """Rows read of a Parquet file; lines of text before the position, a header included."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file on its store."""

    store: ObjectStore
    path: str
    size_bytes: int

    def read_range(self, start: int, length: int) -> bytes:
        """Return bytes of the file; raise if it is gone or too short."""
        data = self.store.read_range(self.path, start, length)
        if data is None:
            raise changed_error(self, None)
        if len(data) != min(length, self.size_bytes - start):
            raise changed_error(self, start + len(data))
        return data

    def check_size(self) -> None:
        """Refuse a file that has gone or is not as large as when it was first seen."""
        found = self.store.size(self.path)
        if found != self.size_bytes:
            raise changed_error(self, found)

    def __str__(self) -> str:
        return f"{self.store.url.rstrip('/')}/{self.path}"


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much of a file fits into what is left of an epoch."""

    rows: int
    size_bytes: int
    is_first: bool
    """The plan holds nothing yet: the smallest possible piece is read, however large it is."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an epoch may read a file, and about how much that is."""

    end: int
    """The position before which rows must begin to be read."""
    rows: float
    size_bytes: int
    is_whole: bool
    """No row is left behind `end`."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """What is no row of the schema."""

    line: int
    """The line in the file, from 1, on which it begins; in Parquet the number of the row."""
    text: bytes
    """The row; of Parquet the text that cannot be read."""
    error: str
    fails: bool = False
    """It fails the job by a rule of schema drift, also where bad rows are diverted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a file, in order, and where the next ones begin."""

    rows: Sequence[pa.RecordBatch | pa.Table]
    bad: Sequence[BadRow]
    next: FileOffset | None
    """None within a unit that can only be read whole: reading must not stop here."""
    is_last: bool
    """The file has no more rows."""


class FileFormat(ABC):
    """How files of one format are measured and read, for rows of one schema."""

    unit: ClassVar[str] = "line"
    """What `BadRow.line` counts."""
    widens: ClassVar[bool] = False
    """Files tell types, and numbers of narrower ones are read."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        ignores_extra: bool,
        rules: DriftRules | None = None,
        fills_missing: bool = False,
    ) -> None:
        self.schema = schema
        self.rules = rules or DriftRules(on_new="ignore" if ignores_extra else "bad")
        """What becomes of rows with other columns, in formats whose rows tell their columns."""
        self.ignores_extra = ignores_extra
        """Columns that the schema does not name are skipped; otherwise they are an error."""
        self.fills_missing = fills_missing
        """Columns that a whole file does not have are null; otherwise they are an error."""

    @classmethod
    @abstractmethod
    def infer(cls, file: SourceFile) -> pa.Schema:
        """Return the columns that a file has, as far as it tells them."""

    @abstractmethod
    def check_types(self) -> None:
        """Refuse types that have no form in this format. Called when the graph is built."""

    @abstractmethod
    def reach(
        self, file: SourceFile, start: FileOffset, allowance: Allowance
    ) -> Reach | None:
        """Return how far to read, or None if not even one row fits. Called on the driver."""

    @abstractmethod
    def read(self, file: SourceFile, start: FileOffset, end: int) -> Iterator[Piece]:
        """Read the rows that begin in `[start, end)`; at least one piece, perhaps empty."""

    def folders_of(self, file: SourceFile, own: Collection[str]) -> Folders:
        """Return what a file's folders tell about columns of the schema that it has not itself."""
        return {
            name: text
            for name, text in read_folders(file.path).items()
            if name in self.schema.names and name not in own
        }

    def _widened(self, found: pa.Schema) -> pa.Schema:
        """Return a file's columns as they are read: narrower numbers in the wider type."""
        # Not `schema.field`: a damaged name may be found among the names and fail there.
        wanted = dict(zip(self.schema.names, self.schema.types, strict=True))
        return pa.schema(
            [
                field.with_type(wanted[field.name])
                if field.name in wanted and is_narrower(field.type, wanted[field.name])
                else field
                for field in found
            ]
        )

    def check_columns(self, file: SourceFile, found: pa.Schema) -> None:
        """Refuse a file whose columns are not those of the schema; name all differences.

        Columns that the file's folders tell count as its own.
        """
        told = self.folders_of(file, found.names)
        found = pa.schema([*found, *(self.schema.field(name) for name in told)])
        if self.fills_missing:
            names = set(found.names)
            absent = [f for f in self.schema if f.name not in names and f.nullable]
            if len(absent) < len(self.schema):
                found = pa.schema([*found, *absent])
        if self.ignores_extra:
            names = set(self.schema.names)
            found = pa.schema([field for field in found if field.name in names])
        if self.widens:
            found = self._widened(found)
        problems = find_differences(found, self.schema) or [
            f"column {field.name!r} is {field.type}, expected {wanted}: without a zone it is "
            "not known which instants are meant"
            for field in found
            if _zones(field.type) != _zones(wanted := self.schema.field(field.name).type)
        ]
        if problems:
            raise SchemaError(
                f"{file} has other columns than the schema it is read with: "
                f"{'; '.join(problems)}. Pass the schema that fits all files as schema=, "
                'on_new="ignore" or on_missing="null" if such columns may come and go, or move '
                "this file elsewhere",
                path=file.path,
            )


def fill_missing(rows: Any, schema: pa.Schema) -> Any:
    """Return rows with all columns of a schema; those that they lack are null."""
    if rows.num_columns == len(schema):
        return rows
    own = set(rows.schema.names)
    columns: list[Any] = [
        rows.column(field.name)
        if field.name in own
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema.names)


def widen_numbers(rows: Any, narrower: Collection[str], schema: pa.Schema) -> Any:
    """Return rows with these columns in the types of a schema, which hold the same numbers."""
    for name in narrower:
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(
            index, name, rows.column(index).cast(schema.field(name).type)
        )
    return rows


def _zones(kind: Any) -> list[bool]:
    """Return for each kind of timestamp in a column whether it has a time zone."""
    if pa.types.is_timestamp(kind):
        return [kind.tz is not None]
    return [
        has for index in range(kind.num_fields) for has in _zones(kind.field(index).type)
    ]


def changed_error(file: SourceFile, found_bytes: int | None) -> UserError:
    """Return the error for a file that has changed since it was listed."""
    now = "has gone" if found_bytes is None else f"now has {found_bytes} bytes"
    return UserError(
        f"{file} {now}; it had {file.size_bytes} bytes when it was first listed. Files must "
        "not change once they are there: write new rows to new files, and put whole files "
        "in place by renaming them. To go on, bring the file back as it was",
        code=ErrorCode.INPUT_CHANGED,
        path=file.path,
    )


_FULL = 0.95
"""The share of its budget from which on a subtask takes no further file."""
_WEIGHT_OF_BUDGET = 1_000_000
_ALL_OF_IT = Allowance(1 << 50, 1 << 50, is_first=True)


class Packing:
    """How full the subtasks of an epoch are with files, while the epoch is planned.

    The splits are dealt to the subtasks later, and may be packed differently than here. So a
    subtask may get a third more than its budget, or a piece that cannot be smaller.
    """

    def __init__(self, budget: SourceBudget, format_: FileFormat) -> None:
        self._budget = budget
        self._format = format_
        self._loads = [0.0] * max(1, budget.subtasks)

    @property
    def is_over(self) -> bool:
        """Whether the files are more than the budget of all subtasks."""
        return sum(self._loads) > len(self._loads)

    def add(self, file: SourceFile, start: FileOffset) -> tuple[SplitPlan, bool] | None:
        """Plan as much of a file as fits, and say whether that is all; None if nothing fits."""
        budget, used = self._budget, min(self._loads)
        allowance = Allowance(
            int(budget.rows * (1 - used)), int(budget.size_bytes * (1 - used)), used == 0
        )
        reach = self._format.reach(file, start, allowance) if used < _FULL else None
        if reach is None:
            return None
        return self._put(file, start, reach), reach.is_whole

    def add_all(
        self, files: Iterable[tuple[SourceFile, FileOffset]]
    ) -> list[SplitPlan] | None:
        """Plan all files to their ends; None, and nothing is planned, if they do not fit.

        The first ones of an epoch always fit, however much they are.
        """
        measured = [(f, at, self._format.reach(f, at, _ALL_OF_IT)) for f, at in files]
        whole = [(f, at, reach) for f, at, reach in measured if reach is not None]
        if len(whole) < len(measured):
            raise InternalError("a format found no room for a file where there is no limit")
        loads = sum(self._load_of(reach) for _, _, reach in whole)
        if any(self._loads) and sum(self._loads) + loads > len(self._loads):
            return None
        return [self._put(file, start, reach) for file, start, reach in whole]

    def _put(self, file: SourceFile, start: FileOffset, reach: Reach) -> SplitPlan:
        load = self._load_of(reach)
        self._loads[self._loads.index(min(self._loads))] += load
        weight = max(1, int(load * _WEIGHT_OF_BUDGET))
        return SplitPlan(file.path, tuple(start), reach.end, weight)

    def _load_of(self, reach: Reach) -> float:
        budget = self._budget
        return max(reach.rows / budget.rows, reach.size_bytes / budget.size_bytes)


def plan_files(
    candidates: Iterable[tuple[SourceFile, FileOffset]],
    budget: SourceBudget,
    format_: FileFormat,
) -> tuple[tuple[SplitPlan, ...], bool]:
    """Return what to read of files that have rows left, and whether more is left behind it.

    Files that were begun come first, then new ones, in their order. The subtasks are
    filled one after the other; a file goes to one subtask only. No file is begun before there
    is room for it: a known split without a row would hold the watermark of all others back.
    """
    packing = Packing(budget, format_)
    plans: list[SplitPlan] = []
    has_more = False
    for file, start in candidates:
        found = packing.add(file, start)
        if found is None:
            return tuple(plans), True
        plan, is_whole = found
        plans.append(plan)
        has_more |= not is_whole
    return tuple(plans), has_more
