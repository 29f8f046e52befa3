"""What a join of tables keeps and emits: its config, its output, and the key of that. Pure.

| join | emits |
|---|---|
| inner, of two append-only streams | append-only rows |
| any other | a changelog |

| its sides | its table key |
|---|---|
| semi, anti | that of the left side |
| inner, left; the join key holds the key of the right table | that of the left side: a row has one partner |
| inner, right; the join key holds the key of the left table | that of the right side |
| others | both |
| a side that has none, or rows of a full join that could not be told apart | all columns: a bag |
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import to_ipc
from penstock.core.figures import show_duration
from penstock.core.key_hash import check_key_type
from penstock.core.key_order import has_order
from penstock.core.schema import CHANGE_COLUMN, Settling, StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.aggregate import DIALECT
from penstock.operators.aggregates.frames import frame_schema
from penstock.operators.changes import check_free
from penstock.operators.joins.matching import JoinConfig
from penstock.operators.joins.sides import EVENT_TIME, How, JoinRules, plain
from penstock.state.tables.column_groups import ColumnGroup, Meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoinConfig(JoinConfig):
    """The config of joins of tables."""

    kind: ClassVar[str] = "table_join"

    left_ttl_micros: int | None = None
    right_ttl_micros: int | None = None

    def streams(self) -> tuple[StreamSchema, StreamSchema]:
        """Return both sides as they come, changes included."""
        return StreamSchema.from_bytes(self.left), StreamSchema.from_bytes(self.right)

    @override
    def sides(self) -> tuple[StreamSchema, StreamSchema]:
        left, right = map(without_change, self.streams())
        return plain(left), plain(right)

    @override
    def rules(self) -> JoinRules:
        left, right = self.sides()
        times = [s.arrow.field(s.time_column).type for s in (left, right) if s.time_column]
        own: tuple[Any, ...] = ()
        if len(times) == 2:
            zone = times[0].tz or times[1].tz
            own = (pa.field(EVENT_TIME, pa.timestamp("us", zone)),)
        return JoinRules(
            left,
            right,
            How(self.how),
            self.suffix,
            self.predicate(),
            own=own,
            time_column=EVENT_TIME if own else None,
        )

    @override
    def shown(self) -> Mapping[str, str]:
        left, right = (
            _show_kept(stream, ttl)
            for stream, ttl in zip(
                self.streams(), (self.left_ttl_micros, self.right_ttl_micros), strict=True
            )
        )
        return {**self.shown_keys(), "keeps left rows": left, "keeps right rows": right}


def _show_kept(stream: StreamSchema, ttl_micros: int | None) -> str:
    if ttl_micros is None:
        return "until they are removed" if stream.is_changelog else "for ever"
    clock = "processing" if stream.time_column is None else "event"
    removed = " or until they are removed" if stream.is_changelog else ""
    return f"for {show_duration(ttl_micros)} of {clock} time{removed}"


def without_change(stream: StreamSchema) -> StreamSchema:
    """Return the columns of a table whose changes a stream holds; of other streams the same."""
    if not stream.is_changelog:
        return stream
    arrow = stream.arrow.remove(stream.arrow.get_field_index(CHANGE_COLUMN))
    return replace(stream, arrow=arrow, table_key=None, is_bag=False)


def meaning_of(rules: JoinRules, output: StreamSchema) -> ColumnGroup:
    """Return what state says about its join: that of another one is refused.

    A changelog takes back what it has emitted. By another kind of join or predicate it would
    take back rows that were never there, and leave others. Rows that are never taken back may
    be joined by another predicate from some epoch on.
    """
    how, predicate = str(rules.how), rules.predicate
    meaning = Meaning(how)
    if predicate is not None and output.is_changelog:
        meaning = Meaning(f"{how} where", str(predicate), DIALECT)
    # It has no columns of its own, because it is about all of them.
    fill = to_ipc([], pa.schema([]))
    return ColumnGroup("join", (), meaning, fill, noun="kind of")


def find_identity_problems(stream: StreamSchema, side: str) -> list[str]:
    """Return the columns of a side that cannot be looked for, though they tell rows apart."""
    keys = stream.key_columns
    names = dict.fromkeys((*keys, *(stream.table_key or ())))
    types = frame_schema(without_change(stream).arrow)
    problems = []
    for name in names:
        kind = stream.arrow.field(name).type
        try:
            check_key_type(kind)
            is_possible = has_order(kind) and types[name] != pl.Object
        except SchemaError:
            is_possible = False
        if not is_possible:
            what = "the key of the join" if name in keys else "what tells its rows apart"
            problems.append(
                f"column {name!r} of the {side} side is a part of {what}, and {kind} cannot be "
                "looked for: cast it, or leave it out before"
            )
    return problems


def derive_output(
    rules: JoinRules, left: StreamSchema, right: StreamSchema
) -> StreamSchema:
    """Return the schema of what a join of two streams emits; they are as they come."""
    rows = rules.output
    if rules.how is How.INNER and not (left.is_changelog or right.is_changelog):
        return rows
    check_free(rows.arrow.names)
    key = _derive_key(rules, left, right)
    is_bag = key is None
    if key is None:
        key = tuple(rows.arrow.names)
    schema = pa.schema([pa.field(CHANGE_COLUMN, pa.string()), *rows.arrow])
    # Changes of one key come from several subtasks, unless the join key is a part of it.
    is_within = (
        set(left.key_columns) <= set(key),
        {rules.right_names[name] for name in right.key_columns} <= set(key),
    )
    is_together = {
        How.INNER: any(is_within),
        How.RIGHT: is_within[1],
        How.FULL: all(is_within),
    }.get(rules.how, is_within[0])
    settling = Settling.TOGETHER if is_together else Settling.APART
    return StreamSchema(
        schema, rows.time_column, table_key=key, settling=settling, is_bag=is_bag
    )


def _derive_key(
    rules: JoinRules, left: StreamSchema, right: StreamSchema
) -> tuple[str, ...] | None:
    """Return the columns that tell the rows of the result apart; None if there are none."""
    how, emitted = rules.how, set(rules.output.arrow.names)
    one = None if left.table_key is None or left.is_bag else left.table_key
    if how.is_one_sided or one is None:
        return one
    if right.table_key is None or right.is_bag:
        return None
    other = tuple(rules.right_names[name] for name in right.table_key)
    if how in (How.INNER, How.LEFT) and set(right.table_key) <= set(right.key_columns):
        key = one
    elif how in (How.INNER, How.RIGHT) and set(one) <= set(left.key_columns):
        key = other
    else:
        key = tuple(dict.fromkeys((*one, *other)))
    if how is How.FULL and not _are_told_apart(rules, one, other):
        return None
    replaced = {field.name for field in rules.own}
    if not set(key) <= emitted - replaced:
        return None
    return key


def _are_told_apart(rules: JoinRules, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Tell whether unmatched rows of both sides of a full join always differ in their keys.

    They do if one side has a key column that is never null, and that is null for the other.
    """
    own_right = {output: name for name, output in rules.right_names.items()}
    only_left = [name for name in one if name not in own_right]
    only_right = [own_right[name] for name in other if name not in rules.left.arrow.names]
    return any(not rules.left.arrow.field(name).nullable for name in only_left) or any(
        not rules.right.arrow.field(name).nullable for name in only_right
    )
