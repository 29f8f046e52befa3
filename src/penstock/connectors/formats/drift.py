"""Schema drift: what becomes of records whose columns are no longer those of the schema.

| option       | a record has                   | values                                             |
|--------------|--------------------------------|----------------------------------------------------|
| `on_new`     | a key that the schema has not  | `"ignore"` it, the record is `"bad"`, or `"fail"`  |
| `on_missing` | no key for a column            | it is `"null"`, the record is `"bad"`, or `"fail"` |
| `on_wider`   | a value that the type does not hold | the record is `"bad"`, `"fail"`, or `"cast"`  |

A bad record goes where bad records go. `"fail"` fails the job also where these are diverted: some
want nonsense set aside, and to be woken when a producer changes. `"cast"` takes a number, boolean
or text of the same meaning: 5 for text, "5" for a number, 1.0 for a whole one; a value
that would lose something, such as 1.5 for a whole number, is bad.

Rules are for columns; what is no JSON object at all is bad, whatever the rules are.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.core.spellings import check_choice

OnNew: TypeAlias = Literal["ignore", "bad", "fail"]
OnMissing: TypeAlias = Literal["null", "bad", "fail"]
OnWider: TypeAlias = Literal["bad", "fail", "cast"]

ON_NEW: Sequence[OnNew] = ("ignore", "bad", "fail")
ON_MISSING: Sequence[OnMissing] = ("null", "bad", "fail")
ON_WIDER: Sequence[OnWider] = ("bad", "fail", "cast")


class DriftError(ValueError):
    """A record that fails the job by a rule, wherever bad records go."""


@dataclass(frozen=True, slots=True)
class DriftRules:
    """What becomes of records with other columns. Plain data, part of a config."""

    on_new: OnNew = "ignore"
    on_missing: OnMissing = "null"
    on_wider: OnWider = "bad"

    def __post_init__(self) -> None:
        check_choice("on_new", self.on_new, ON_NEW)
        check_choice("on_missing", self.on_missing, ON_MISSING)
        check_choice("on_wider", self.on_wider, ON_WIDER)

    def can_fail(self) -> bool:
        """Tell whether a rule fails the job."""
        return "fail" in (self.on_new, self.on_missing, self.on_wider)

    def check_failing(
        self, record: bytes, schema: pa.Schema, optional: Collection[str] = ()
    ) -> None:
        """Raise `DriftError` if a record that is bad is so by a rule that fails the job."""
        kind, what = find_drift(record, schema, self, optional)
        if kind is not None and getattr(self, kind) == "fail":
            raise DriftError(f'{what}, and {kind} is "fail"')


OPTIONS = tuple(field.name for field in fields(DriftRules))
"""The names of the rules."""


def read_keys(record: bytes) -> dict[str, Any] | None:
    """Return a record by Python's own parser, with numbers as text.

    None if it is no object, has a key twice, or is nested too deep.
    """
    try:
        found = json.loads(
            record.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=str,
            parse_float=str,
        )
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def find_drift(
    record: bytes,
    schema: pa.Schema,
    rules: DriftRules,
    optional: Collection[str] = (),
) -> tuple[str | None, str]:
    """Return by which rule a bad record is bad, and what it has; None if by no rule.

    >>> orders = pa.schema([("id", pa.int64())])
    >>> find_drift(b'{"id": 1, "tip": 2}', orders, DriftRules(on_new="bad"))
    ('on_new', "it has the new column 'tip'")
    """
    found = read_keys(record)
    if found is None:
        return None, ""
    new = next(find_new(found, schema), None)
    if new is not None and rules.on_new != "ignore":
        return "on_new", f"it has the new column {new!r}"
    missing = next(find_missing(found, schema, optional), None)
    if missing is not None and rules.on_missing != "null":
        return "on_missing", f"it has no column {missing!r}"
    if any(not one.nullable and found.get(one.name) is None for one in schema):
        return None, ""
    return "on_wider", "it has a value that its column's type does not hold"


def find_new(found: Any, parts: Iterable[Any], path: str = "") -> Iterator[str]:
    """Yield the keys that a schema does not have, also those inside of structs and lists."""
    types = {part.name: part.type for part in parts}
    for name, value in found.items():
        if name not in types:
            yield f"{path}{name}"
        else:
            yield from _new_inside(value, types[name], f"{path}{name}")


def _new_inside(value: Any, kind: Any, path: str) -> Iterator[str]:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        yield from find_new(value, kind, f"{path}.")
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(
        value, list
    ):
        for each in value:
            yield from _new_inside(each, kind.value_type, f"{path}[]")


def find_missing(
    found: dict[str, Any], schema: pa.Schema, optional: Collection[str] = ()
) -> Iterator[str]:
    """Yield the columns that a record has no key for, and should have."""
    return (n for n in schema.names if n not in found and n not in optional)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found
