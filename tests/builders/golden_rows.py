"""Rows of JSON lines made comparable: order and spelling of instants mean nothing.

Pure. Equal values are equal whatever their form: 950 is 950.0, an instant without a zone is
in UTC.
"""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


class BrokenChangelogError(AssertionError):
    """A changelog contradicts itself."""


def parse_lines(text: bytes) -> list[Row]:
    """Return the objects of JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def fold_changes(changes: Iterable[Row], key: Sequence[str]) -> list[Row]:
    """Return the table that a changelog leads to.

    Each change must fit what the earlier ones have made: `before` is the row as it is, `c`
    comes where there is none, `d` leaves none.
    """
    table: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        before, after = change["before"], change["after"]
        row = after if before is None else before
        if row is None:
            raise BrokenChangelogError(f"a change of nothing: {change}")
        found = tuple(row[column] for column in key)
        if table.get(found) != before:
            raise BrokenChangelogError(f"{found} is {table.get(found)}, but {change}")
        if change["op"] != _op_of(before, after):
            raise BrokenChangelogError(f"the op does not fit: {change}")
        if after is None:
            del table[found]
        else:
            table[found] = after
    return list(table.values())


def _op_of(before: Row | None, after: Row | None) -> str:
    if before is None:
        return "c"
    return "d" if after is None else "u"


def to_multiset(rows: Iterable[Row], instants: Sequence[str] = ()) -> Counter[Hashable]:
    """Return how often each row is there; the columns `instants` are read as instants."""
    return Counter(_frozen(row | _instants_of(row, instants)) for row in rows)


def _instants_of(row: Mapping[str, Any], instants: Sequence[str]) -> Row:
    return {column: _to_instant(row[column]) for column in instants}


def _to_instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    assert isinstance(value, Hashable)
    return value
