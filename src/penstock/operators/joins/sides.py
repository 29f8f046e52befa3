"""The rules of every join: its keys, the columns of its output, what else a pair must fulfil.

Pure. Side `left` is input 0 of a join's operator, `right` is input 1. A side's rows are held in
plain layouts: dictionaries are decoded.

| output | columns |
|---|---|
| semi, anti | those of the left side |
| others | those of the left side, then those of the right side without its keys of equal names |
| joins by event time | besides: what the join says about time, its own columns |

A key that has one name on both sides is one column, with the value of whichever side is there.
Other columns of the right side whose names are taken get a suffix. The residual predicate reads
the columns that an inner join would emit; a pair for which it is not true is no match.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.arrow_types import Micros, have_same_values, relay, stored_type
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.operators.expression_checks import (
    ExpressionInput,
    derive_input,
    derive_types,
    show_types,
)
from penstock.operators.frames import polars_type
from penstock.state.tables.sorted_rows import Flags, Positions, take_rows

LATE_RIGHT = "late_right"
"""The side output of a join with the late rows of its right side; `LATE` has the left side's."""
BAD_RIGHT = "bad_right"
"""The side output of a join with the bad rows of its right side; `BAD` has the left side's."""
EVENT_TIME = "event_time"
"""The column of a join's output that holds the later event time of both sides."""
SIDES = ("left", "right")


class How(StrEnum):
    """Which rows a join emits."""

    INNER = "inner"
    """Pairs."""
    LEFT = "left"
    """Pairs, and left rows without a match."""
    RIGHT = "right"
    """Pairs, and right rows without a match."""
    FULL = "full"
    """Pairs, and rows of both sides without a match."""
    SEMI = "semi"
    """Left rows that have a match, each once."""
    ANTI = "anti"
    """Left rows without a match."""

    @property
    def is_one_sided(self) -> bool:
        """Whether only columns of the left side are emitted."""
        return self in (How.SEMI, How.ANTI)

    @property
    def emits_unmatched(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right side are emitted if they have no match."""
        return self in (How.LEFT, How.FULL, How.ANTI), self in (How.RIGHT, How.FULL)


def to_how(how: Any) -> How:
    """Return the kind of join that a user names."""
    try:
        return How(how if isinstance(how, str) else "")
    except ValueError:
        word = str(how).lower().replace("_", "").removeprefix("left")
        hint = {"outer": "full", "fullouter": "full", "semi": "semi", "anti": "anti"}.get(
            word
        )
        shown = (
            did_you_mean(str(how), [str(one) for one in How])
            if hint is None
            else f": write {hint!r}"
        )
        raise UserError(
            f"a join cannot be {how!r:.80}{shown}", code=ErrorCode.INVALID_CONFIG
        ) from None


def plain(stream: StreamSchema, keys: Sequence[str] | None = None) -> StreamSchema:
    """Return a stream whose columns hold the same values in plain layouts, keyed by `keys`."""
    columns = [
        pa.field(field.name, stored_type(field.type), field.nullable)
        for field in stream.arrow
    ]
    keyed = stream.key_columns if keys is None else tuple(keys)
    return StreamSchema(pa.schema(columns), stream.time_column, keyed)


@dataclass(frozen=True, slots=True)
class Pick:
    """Some rows of one side by position. A column is copied when it is asked for."""

    rows: pa.RecordBatch
    times: Micros
    """The event time of each of `rows`."""
    places: Positions
    is_whole: bool = False
    """Whether every row is picked once, in order; then nothing is copied."""

    def column(self, name: str) -> Any:
        """Return one column of the picked rows."""
        column = self.rows.column(name)
        return column if self.is_whole else take_rows(column, self.places)

    @property
    def micros(self) -> Micros:
        """The event times of the picked rows."""
        return self.times[self.places]

    def where(self, kept: Flags) -> "Pick":
        """Return only those for which `kept` is true."""
        return Pick(self.rows, self.times, self.places[kept])


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of an output, and where its values come from."""

    field: "pa.Field[Any]"
    left: str | None = None
    right: str | None = None
    """With neither it is the join's own."""


@dataclass(frozen=True)
class JoinRules:
    """What one join emits. Valid if `find_problems` finds nothing."""

    left: StreamSchema
    """In plain layouts; its keys correspond to those of `right` one by one."""
    right: StreamSchema
    how: How
    suffix: str
    predicate: pl.Expr | None
    own: tuple["pa.Field[Any]", ...]
    """Timestamps in microseconds that the join adds, such as its windows."""
    time_column: str | None
    """The event time of pairs and of right rows."""
    shared: tuple[str, ...] = ()
    """Columns that both sides have with equal values in every pair, besides the keys."""
    is_windowed: bool = False
    """Whether `own` says in which window rows are; then left rows alone have it, too."""

    @cached_property
    def output(self) -> StreamSchema:
        """The schema of the output."""
        time = self.time_column
        if self.how.is_one_sided and not self.is_windowed:
            time = self.left.time_column
        return StreamSchema(pa.schema([c.field for c in self._columns]), time)

    @cached_property
    def _pair_columns(self) -> tuple[_Column, ...]:
        """What an inner join emits, some of it perhaps null."""
        is_padded = self.how in (How.RIGHT, How.FULL), self.how in (How.LEFT, How.FULL)
        own = {field.name: _Column(field) for field in self.own}
        same = self._same_names
        columns: dict[str, _Column] = {}
        for field in self.left.arrow:
            name, may_lack = field.name, field.nullable or is_padded[0]
            if name in own:
                columns[name] = own[name]
            elif name in same:
                if is_padded[0]:
                    may_lack = field.nullable or self.right.arrow.field(name).nullable
                columns[name] = _Column(field.with_nullable(may_lack), name, name)
            else:
                columns[name] = _Column(field.with_nullable(may_lack), name)
        for field in self.right.arrow:
            if field.name in same:
                continue
            name = field.name
            if name in columns or name in own:
                name += self.suffix
            kept = field.with_name(name).with_nullable(field.nullable or is_padded[1])
            columns[name] = _Column(kept, right=field.name)
        return tuple({**columns, **own}.values())

    @cached_property
    def right_names(self) -> Mapping[str, str]:
        """What each column of the right side is called where pairs are emitted."""
        return {
            column.right: column.field.name
            for column in self._pair_columns
            if column.right is not None
        }

    @cached_property
    def _columns(self) -> tuple[_Column, ...]:
        if not self.how.is_one_sided:
            return self._pair_columns
        own = [_Column(field) for field in self.own] if self.is_windowed else []
        taken = {column.field.name for column in own}
        left = [f for f in self.left.arrow if f.name not in taken]
        return (*(_Column(field, field.name) for field in left), *own)

    @cached_property
    def _same_names(self) -> frozenset[str]:
        """The columns of both sides that are one column of the output."""
        keys = zip(self.left.key_columns, self.right.key_columns, strict=True)
        return frozenset((*(one for one, other in keys if one == other), *self.shared))

    @cached_property
    def _reads(self) -> ExpressionInput:
        """The columns of a pair that the predicate reads."""
        schema = pa.schema([column.field for column in self._pair_columns])
        return derive_input(
            [pl.lit(1) if self.predicate is None else self.predicate], schema
        )

    def rows_of(
        self, left: Pick | None, right: Pick | None, own: Mapping[str, Micros]
    ) -> pa.RecordBatch:
        """Return rows of the output; a side that is None is null in all of them.

        `own` has the join's own columns in microseconds.
        """
        return _rows_of(self._columns, left, right, own)

    def are_matches(
        self, left: Pick, right: Pick, own: Mapping[str, Micros]
    ) -> Flags | None:
        """Tell for which pairs of equal keys the predicate is true; None for all."""
        if self.predicate is None:
            return None
        reads = self._reads
        if not reads.names:
            is_true = pl.select(self.predicate).item() is True
            return None if is_true else np.zeros(len(left.places), np.bool_)
        columns = [c for c in self._pair_columns if c.field.name in reads.names]
        frame = reads.frame(_rows_of(columns, left, right, own))
        mask = frame.select(self.predicate).to_series().fill_null(value=False)
        if mask.dtype != pl.Boolean:  # a predicate that is null whatever the row
            mask = mask.cast(pl.Boolean).fill_null(value=False)
        return None if mask.all() else mask.to_numpy()

    def find_problems(self) -> list[str]:
        """Return what is wrong with columns of the output, and with the predicate."""
        problems = _find_clashes(self)
        if problems or self.predicate is None:
            return problems
        schema = pa.schema([column.field for column in self._pair_columns])
        try:
            types = derive_types(f"where={self.predicate}", schema, [self.predicate])
        except UserError as error:
            return [error.message]
        if not (len(types) == 1 and types.dtypes()[0] in (pl.Boolean(), pl.Null())):
            problems.append(
                f"where={self.predicate} needs one true-or-false value per pair, but gives: "
                f"{show_types(types)}. Compare them, or join several with pl.all_horizontal"
            )
        return problems


def _rows_of(
    columns: Sequence[_Column],
    left: Pick | None,
    right: Pick | None,
    own: Mapping[str, Micros],
) -> pa.RecordBatch:
    picks = [pick for pick in (left, right) if pick is not None]
    count = len(picks[0].places)
    arrays: list[Any] = []
    for column in columns:
        kind = column.field.type
        if column.left is None and column.right is None:
            arrays.append(pa.array(own[column.field.name]).view(kind))
        elif left is not None and column.left is not None:
            arrays.append(left.column(column.left))
        elif right is not None and column.right is not None:
            arrays.append(relay(right.column(column.right), kind))
        else:
            arrays.append(pa.nulls(count, kind))
    schema = pa.schema([column.field for column in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _find_clashes(rules: JoinRules) -> list[str]:
    """Return which columns of the output would have the same name."""
    own = {field.name for field in rules.own}
    left, right = set(rules.left.arrow.names), set(rules.right.arrow.names)
    # The left side's own event time is replaced by that of the pair, if their names are equal.
    may_replace = set() if rules.is_windowed else {rules.left.time_column}
    problems = [
        f"column {name!r} of the left side has the name of a column that the join adds: "
        "rename it before"
        for name in rules.left.arrow.names
        if name in own - may_replace
    ]
    same = rules._same_names  # noqa: SLF001 (a part of this class)
    renamed = [n for n in rules.right.arrow.names if n in left | own and n not in same]
    clashing = [n for n in renamed if n + rules.suffix in left | own | (right - same)]
    problems += [
        f"both sides have a column {name!r}, and that of the right side cannot be called "
        f"{name + rules.suffix!r}, which is taken: give the join another suffix=, or rename it "
        "before"
        for name in clashing
    ]
    return problems


def find_key_problems(
    left: StreamSchema,
    right: StreamSchema,
    left_on: Sequence[str],
    right_on: Sequence[str],
) -> list[str]:
    """Return why two sides cannot be joined by these columns."""
    problems: list[str] = []
    if len(left_on) != len(right_on):
        problems.append(
            f"left_on names {len(left_on)} columns and right_on {len(right_on)}: they "
            "correspond one by one"
        )
        return problems
    for one, other in zip(left_on, right_on, strict=True):
        missing = [
            f"the {side} side has no column {name!r}{did_you_mean(str(name), stream.arrow.names)}"
            for side, stream, name in (("left", left, one), ("right", right, other))
            if name not in stream.arrow.names
        ]
        problems += missing
        if missing:
            continue
        kinds = left.arrow.field(one).type, right.arrow.field(other).type
        if not have_same_values(*kinds):
            problems.append(
                f"{one!r} of the left side is {kinds[0]} and {other!r} of the right side is "
                f"{kinds[1]}: keys are equal only if their types are. Cast one of them before, "
                f"as in {_cast_to_write(one, other, *kinds)}"
            )
    for side, names in zip(SIDES, (left_on, right_on), strict=True):
        twice = {name for name in names if list(names).count(name) > 1}
        problems += [f"{side} key {name!r} is named twice" for name in sorted(twice)]
    return problems


def _cast_to_write(one: str, other: str, left: Any, right: Any) -> str:
    """Return the cast of the narrower of two types to the other one, as users write it."""
    is_wider = (
        pa.types.is_integer(left)
        and pa.types.is_integer(right)
        and left.bit_width > right.bit_width
    )
    side, name, kind = ("right", other, left) if is_wider else ("left", one, right)
    return f"with_columns(pl.col({name!r}).cast(pl.{polars_type(kind)})) of the {side} side"


def check_problems(name: str, problems: Sequence[str]) -> None:
    """Raise everything that is wrong with a join, if there is anything."""
    if problems:
        raise SchemaError(
            f"join {name!r} cannot be computed:\n  " + "\n  ".join(problems),
            operator=name,
        )
