"""Changelogs folded into tables; one that contradicts itself is refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


def fold(
    changes: Iterable[Mapping[str, Any]], keys: Sequence[str]
) -> dict[tuple[Any, ...], Row]:
    """Return the table that changes lead to, by key; each must fit what was before it."""
    table: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        key = tuple(change[name] for name in keys)
        before, after = change["before"], change["after"]
        assert table.get(key) == before, (key, change)
        assert before != after, change
        assert change["op"] == op_of(before, after), change
        if after is None:
            del table[key]
        else:
            table[key] = after
    return table


def op_of(before: Row | None, after: Row | None) -> str:
    """Return what a change is called."""
    if before is None:
        return "insert"
    return "delete" if after is None else "update"
