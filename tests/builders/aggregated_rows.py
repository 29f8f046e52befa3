"""Results of aggregates compared, and changelogs folded; one that contradicts itself is refused."""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


def agrees(found: Any, expected: Any, scale: float) -> bool:
    """Tell whether two results are the same: floats to a billionth of what was added up."""
    if isinstance(expected, float) and isinstance(found, float):
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9 * scale)
    if isinstance(expected, Decimal):
        return bool(found == expected)
    return type(found) is type(expected) and bool(found == expected)


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
