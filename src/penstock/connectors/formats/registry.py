"""Finds a format by its name: `record_format`, which checks schema and options at once.

| name         | records are                        | options                                      |
|--------------|------------------------------------|----------------------------------------------|
| `"json"`     | objects, one per value             | `on_new`, `on_missing`, `on_wider`: see `drift` |
| `"csv"`      | rows without a header              | `columns`, the order of fields in a record   |
| `"bytes"`    | one column, as it is               |                                              |
| `"text"`     | one column of UTF-8                |                                              |
| `"debezium"` | changes of a table, in JSON        | those of drift, for the table's columns      |
| `"upsert"`   | rows by key; a tombstone deletes   | `key`, the key's columns; `key_format`; drift |

A name with a colon is a format of somebody else's: `"package.module:Name"` is imported where it
is needed, and called with the schema and the options.

Avro and Protobuf with a schema registry would be two more entries of this table: their formats
get the registry's address as an option and read the header of each value. They are not built.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.connectors.formats.debezium_records import DebeziumRecords
from penstock.connectors.formats.drift import OPTIONS as DRIFT_OPTIONS
from penstock.connectors.formats.drift import DriftRules
from penstock.connectors.formats.json_records import JsonRecords
from penstock.connectors.formats.record_format import RecordFormat
from penstock.connectors.formats.text_records import VALUE, CsvRecords, PlainRecords
from penstock.connectors.formats.upsert_records import UpsertRecords, upsert_schema
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.operators.changelogs.envelopes import DELETED

FormatLike: TypeAlias = str | RecordFormat
"""The name of a format, or a format of the user's own."""

_NOT_BUILT: Final = ("avro", "protobuf")
_KEY_FORMATS: Final = ("json", "text", "bytes", "csv")


def record_format(
    format_: FormatLike,
    schema: pa.Schema | None = None,
    options: Mapping[str, Any] | None = None,
) -> RecordFormat:
    """Return the format of a name, for rows of a schema; a format itself is returned as it is.

    Without a schema "bytes" and "text" have one column, `value`; the others need one.

    >>> orders = record_format("json", pa.schema([("id", pa.int64())]))
    >>> orders.decode(pa.array([b'{"id": 7}', None, b"oops"])).rows.to_pylist()
    [{'id': 7}]
    """
    if isinstance(format_, RecordFormat):
        if options:
            raise UserError(
                f"the format {type(format_).__name__} is given as an object, which has its "
                f"options itself: leave {', '.join(sorted(options))} out",
                code=ErrorCode.INVALID_CONFIG,
            )
        return format_
    if ":" in format_:
        return _imported(format_, schema, dict(options or {}))
    make = _FORMATS.get(format_)
    if make is None:
        raise _unknown(format_)
    plain: dict[str, pa.DataType] = {"bytes": pa.binary(), "text": pa.string()}
    if schema is None and format_ in plain:
        schema = pa.schema([(VALUE, plain[format_])])
    if schema is None:
        raise UserError(
            f"records of format {format_!r} do not tell their columns: pass schema=",
            code=ErrorCode.INVALID_CONFIG,
        )
    given = dict(options or {})
    known = _OPTIONS.get(format_, ())
    unknown = sorted(given.keys() - set(known))
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(
            f"the format {format_!r} has no option {', '.join(map(repr, unknown))}: {has}",
            code=ErrorCode.INVALID_CONFIG,
        )
    return make(schema, **given)


def format_names() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_FORMATS)


def _upserts(
    schema: pa.Schema,
    key: str | Sequence[str] = (),
    key_format: str = "json",
    **drift: Any,
) -> RecordFormat:
    names = [key] if isinstance(key, str) else [*key]
    missing = [name for name in names if name not in schema.names]
    if not names or missing:
        what = f"the schema has no {', '.join(missing)}" if missing else "none is given"
        raise UserError(
            f"upserts need the columns of the key, as key=['user']: {what}",
            code=ErrorCode.INVALID_CONFIG,
        )
    if key_format not in _KEY_FORMATS:
        raise UserError(
            f"key_format is {key_format!r}: use one of {', '.join(map(repr, _KEY_FORMATS))}",
            code=ErrorCode.INVALID_CONFIG,
        )
    rows = upsert_schema(schema, names)
    keys = record_format(key_format, pa.schema([schema.field(name) for name in names]))
    # Values of others may lack the columns of the key, which are read from the key.
    value = pa.schema([field.with_nullable(True) for field in rows][:-1])  # noqa: FBT003 (Arrow's signature)
    values = JsonRecords(value, DriftRules(**drift), optional=names)
    others = [f for f in schema if f.name not in (*names, DELETED)]
    return UpsertRecords(rows, keys, values, [f.name for f in others if not f.nullable])


def _json(schema: pa.Schema, **drift: Any) -> RecordFormat:
    return JsonRecords(schema, DriftRules(**drift))


def _debezium(schema: pa.Schema, **drift: Any) -> RecordFormat:
    return DebeziumRecords(schema, DriftRules(**drift))


def _imported(name: str, schema: pa.Schema | None, options: dict[str, Any]) -> RecordFormat:
    """Return a format that is named by its module and its name in it."""
    module, _, attribute = name.partition(":")
    try:
        make = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"the format {name!r} cannot be imported: {error}. Name a module that is installed "
            "wherever the job runs, and a RecordFormat in it",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
    made = make(schema, **options)
    if not isinstance(made, RecordFormat):
        raise UserError(
            f"{name!r} gives {type(made).__name__}, which is no RecordFormat",
            code=ErrorCode.INVALID_CONFIG,
        )
    return made


def _unknown(name: str) -> UserError:
    if name in _NOT_BUILT:
        return UserError(
            f"the format {name!r} is not built in. Give format='bytes' and decode the column in "
            "a step, or name a RecordFormat of your own as 'package.module:Name'; JSON behind "
            "the header of a schema registry is read by format='json'",
            code=ErrorCode.INVALID_CONFIG,
        )
    names = ", ".join(map(repr, _FORMATS))
    return UserError(
        f"the format {name!r:.80} is unknown{did_you_mean(str(name), _FORMATS)}: use one of "
        f"{names}, or name a RecordFormat of your own as 'package.module:Name'",
        code=ErrorCode.INVALID_CONFIG,
    )


_FORMATS: Final[Mapping[str, Callable[..., RecordFormat]]] = {
    "json": _json,
    "csv": CsvRecords,
    "bytes": PlainRecords,
    "text": PlainRecords,
    "debezium": _debezium,
    "upsert": _upserts,
}
_OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "json": DRIFT_OPTIONS,
    "csv": ("columns",),
    "debezium": DRIFT_OPTIONS,
    "upsert": ("key", "key_format", *DRIFT_OPTIONS),
}
