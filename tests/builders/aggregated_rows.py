"""Results of aggregates compared, and changelogs folded; one that contradicts itself is refused."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    for change in paired(changes, keys):
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


def bag(rows: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    """Return how often each row is there; zeros of either sign are equal, as keys are."""
    return Counter(tuple(sorted(row.items(), key=lambda item: item[0])) for row in rows)


def fold_bag(changes: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    """Return the bag of rows that changes lead to; no row may go that is not there."""
    table: Counter[Any] = Counter()
    for change in changes:
        (row,) = bag([{name: change[name] for name in change if name != "change"}])
        table[row] += 1 if change["change"] in ("insert", "update-after") else -1
        assert table[row] >= 0, change
    return +table


def paired(
    changes: Iterable[Mapping[str, Any]], keys: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield settled changes as one row each: the key, `op`, `before` and `after`.

    Rows that are in this form already are passed on: jobs wrote it before changes were flat.
    """
    before: Row | None = None
    for change in changes:
        kind = change.get("change")
        if kind is None:
            yield change
            continue
        key = {name: change[name] for name in keys}
        values = {
            name: value
            for name, value in change.items()
            if name not in {*keys, "change", "op", "before", "after"}
        }
        assert (before is not None) == (kind == "update-after"), change
        if kind == "update-before":
            before = {**key, **values}
        elif kind == "update-after":
            assert before is not None
            assert {name: before.pop(name) for name in keys} == key, change
            yield {**key, "op": "update", "before": before, "after": values}
            before = None
        elif kind == "insert":
            yield {**key, "op": "insert", "before": None, "after": values}
        else:
            assert kind == "delete", change
            yield {**key, "op": "delete", "before": values, "after": None}
    assert before is None, "an update-before has no update-after"


def op_of(before: Row | None, after: Row | None) -> str:
    """Return what a change is called."""
    if before is None:
        return "insert"
    return "delete" if after is None else "update"
