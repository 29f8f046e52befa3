"""Which columns a Delta table can take: types of Delta, and rules between rows and a table. Pure.

| A column of the rows | Rule |
|---|---|
| is in the table, with the same type | goes there |
| is not in the table | refused, or added to it with `evolve=True` |
| has another type in the table | refused |
| is missing, and may be null in the table | is null |
| is missing, and may not be null | refused |

Types of Delta are fewer than those of Arrow. What has the same values is converted: smaller units
of time to microseconds, zones to UTC, layouts of text and lists. The rest is refused, with the
expression that helps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.arrow_types import is_bytes, is_text
from penstock.core.schema import CHANGE_COLUMN
from penstock.errors import did_you_mean

_SAME = (
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_date32,
)
WRITABLE_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""What tables may ask of their writers; those that concern columns are looked at one by one."""


def to_delta_type(kind: Any) -> Any:
    """Return the type as which Delta stores values of an Arrow type; None if it cannot.

    >>> to_delta_type(pa.timestamp("ms", "Asia/Tokyo"))
    TimestampType(timestamp[us, tz=UTC])
    >>> to_delta_type(pa.uint32()) is None
    True
    """
    types, found = pa.types, None
    if types.is_dictionary(kind):
        found = to_delta_type(kind.value_type)
    elif any(is_same(kind) for is_same in _SAME):
        found = kind
    elif is_text(kind):
        found = pa.string()
    elif is_bytes(kind) or types.is_fixed_size_binary(kind):
        found = pa.binary()
    elif types.is_date64(kind):
        found = pa.date32()
    elif types.is_timestamp(kind):
        utc = None if kind.tz is None else "UTC"
        found = None if kind.unit == "ns" else pa.timestamp("us", utc)
    elif types.is_decimal(kind):
        fits = kind.precision <= 38
        found = pa.decimal128(kind.precision, kind.scale) if fits else None
    else:
        found = _to_nested_type(kind)
    return found


def _to_nested_type(kind: Any) -> Any:
    types = pa.types
    if types.is_map(kind):
        key, item = to_delta_type(kind.key_type), to_delta_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_struct(kind):
        parts = [kind.field(index) for index in range(kind.num_fields)]
        made = [to_delta_type(part.type) for part in parts]
        if not parts or None in made:
            return None
        return pa.struct([p.with_type(t) for p, t in zip(parts, made, strict=True)])
    has_items = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(has(kind) for has in has_items):
        item = to_delta_type(kind.value_type)
        nullable = kind.value_field.nullable
        return None if item is None else pa.list_(pa.field("element", item, nullable))
    return None


def to_delta_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as a table stores them; each must have a type of Delta."""
    return pa.schema([field.with_type(to_delta_type(field.type)) for field in schema])


def find_alike(names: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that differ from another one by small and capital letters alone.

    >>> find_alike(["Item", "price"], ["item", "price"])
    [('Item', 'item')]
    """
    known: dict[str, str] = {}
    for name in others:
        known.setdefault(name.lower(), name)
    pairs = ((name, known.get(name.lower(), name)) for name in names)
    return [(name, other) for name, other in pairs if name != other]


def find_type_problems(schema: pa.Schema) -> list[str]:
    """Return the columns whose types or names Delta does not have, each with what to do."""
    return [
        f"columns {other!r} and {name!r} have one name in Delta, where capital letters do not "
        "count: rename one before the sink"
        for name, other in find_alike(schema.names, schema.names)
    ] + [
        f"column {field.name!r} has the type {field.type}, which Delta does not have: "
        f"{_advice(field.name, field.type)}"
        for field in schema
        if to_delta_type(field.type) is None
    ]


def find_folder_problems(partition_by: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the columns whose values the client cannot tell apart as partitions.

    It writes the decimal -0.01 as `0.-1`, and opens no table any more that has it.
    """
    return [
        f"partition_by names {name!r} of type {schema.field(name).type}, and decimals with "
        f"fractions cannot be partitions of a Delta table: use pl.col({name!r}).cast(pl.String)"
        for name in partition_by
        if name in schema.names
        and pa.types.is_decimal(schema.field(name).type)
        and schema.field(name).type.scale > 0
    ]


def _advice(name: str, kind: Any) -> str:
    column = f"pl.col({name!r})"
    if pa.types.is_timestamp(kind):
        return f"round it, with {column}.dt.cast_time_unit('us')"
    if pa.types.is_unsigned_integer(kind):
        wide = "pl.Decimal(20, 0)" if pa.types.is_uint64(kind) else "pl.Int64"
        return f"widen it, with {column}.cast({wide})"
    if pa.types.is_float16(kind):
        return f"widen it, with {column}.cast(pl.Float32)"
    return f"convert it before the sink, perhaps with {column}.cast(pl.String)"


def find_column_problems(
    rows: pa.Schema, table: pa.Schema, *, evolves: bool
) -> tuple[list[str], list["pa.Field[Any]"]]:
    """Return why rows do not fit into a table, and the columns that it has to get.

    `rows` has types of Delta.
    """
    problems, missing = [], []
    for field in rows:
        if field.name not in table.names:
            alike = find_alike([field.name], table.names)
            if evolves and alike:
                problems.append(
                    f"the table has {alike[0][1]!r}, and a column {field.name!r} beside it would "
                    "have the same name in Delta, where capital letters do not count: rename it "
                    "before the sink"
                )
                continue
            if evolves:
                missing.append(field)
                continue
            hint = did_you_mean(field.name, set(table.names))
            problems.append(
                f"the table has no column {field.name!r}{hint}. Leave it out before the sink, "
                "or pass evolve=True to have it added"
            )
            continue
        wanted = table.field(field.name)
        if not have_same_type(field.type, wanted.type):
            problems.append(
                f"column {field.name!r} is {field.type}, and in the table it is {wanted.type}: "
                "convert it before the sink"
            )
        elif field.nullable and not wanted.nullable:
            problems.append(
                f"column {field.name!r} may be null, and in the table it may not: drop the "
                "constraint there, or declare the rows' column as not nullable"
            )
    problems += [
        f"the table's column {field.name!r} may not be null, and the rows do not have it: add it"
        for field in table
        if field.name not in rows.names and not field.nullable
    ]
    return problems, missing


def have_same_type(one: Any, other: Any) -> bool:
    """Return whether two types of Delta have the same values; names of list items do not count."""
    return bool(_named(one).equals(_named(other)))


def _named(kind: Any) -> Any:
    """Return a type with the usual names of its parts, all of them nullable."""
    types = pa.types
    if types.is_map(kind):
        return pa.map_(_named(kind.key_type), _named(kind.item_type))
    if types.is_struct(kind):
        parts = (kind.field(index) for index in range(kind.num_fields))
        return pa.struct([pa.field(part.name, _named(part.type)) for part in parts])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_named(kind.value_type))
    return pa.string() if is_text(kind) else (pa.binary() if is_bytes(kind) else kind)


def find_table_problems(
    table: pa.Schema,
    partition_columns: Sequence[str],
    configuration: Mapping[str, str | None],
    features: Sequence[str],
    *,
    partition_by: Sequence[str],
    merges: bool,
) -> list[str]:
    """Return why a table cannot be written to by plain data files, or merged into."""
    problems = [
        f"it needs the writer feature {feature!r}, which is not supported"
        for feature in sorted({*features} - WRITABLE_FEATURES)
    ]
    if tuple(partition_columns) != tuple(partition_by):
        problems.append(
            f"it is partitioned by {list(partition_columns)}, and the sink by "
            f"{list(partition_by)}: pass partition_by={list(partition_columns)}"
        )
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        problems.append("its columns have other names in the files (column mapping)")
    if merges:
        if configuration.get("delta.appendOnly") == "true":
            problems.append(
                "it takes appends only (delta.appendOnly), and changes are merged"
            )
        if CHANGE_COLUMN in table.names:
            problems.append(
                f"it has the column {CHANGE_COLUMN!r}, so it holds changes as rows, as "
                'mode="append" writes them, and rows cannot be found in it by key: merge into '
                "another table"
            )
        return problems
    problems += [
        f"it has the constraint {name.removeprefix('delta.constraints.')!r}, which is not "
        "checked when files are added: drop it, and filter rows before the sink"
        for name in sorted(configuration)
        if name.startswith("delta.constraints.")
    ]
    for field in table:
        known = {key.decode() for key in field.metadata or {}}
        computed = known & {"delta.generationExpression", "delta.invariants"}
        if computed or any(name.startswith("delta.identity.") for name in known):
            problems.append(
                f"its column {field.name!r} is computed or checked by the table"
            )
    return problems
