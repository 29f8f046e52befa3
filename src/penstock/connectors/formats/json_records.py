"""Records that are JSON objects, one per value, printed in one line or in several.

How it works: values are joined to one text with a newline behind each, and Arrow parses it at
once. Arrow treats newlines as white space, so what it gives must be compared with the values:
each must begin with `{` and end with `}`, and Arrow must give as many rows as there are values.
Then each gave exactly one. For where one is not closed, its last brace is inside of a string,
in which a newline is an error; or another object follows it, and no `{` may follow a `}`
inside of an object. And a value that holds two objects makes the count too high, as none
gives less than one.
"""

from collections.abc import Collection
from functools import partial

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.formats.drift import DriftRules
from penstock.connectors.formats.halving import (
    BadRowError,
    check_nulls,
    collect_stretches,
    parse_stretches,
)
from penstock.connectors.formats.json_parser import JsonParser
from penstock.connectors.formats.json_text import (
    find_json_problems,
    read_objects,
    to_json_lines,
)
from penstock.connectors.formats.record_format import (
    Bytes,
    Decoded,
    RecordFormat,
    find_present,
)
from penstock.connectors.formats.values import (
    NEWLINE,
    Lines,
    cut_lines,
    join_lines,
    name_registry,
    strip_registry_headers,
    strip_white,
)
from penstock.errors import SchemaError

_OPENING, _CLOSING = b"{}"
STRETCH_BYTES = 4 << 20
"""How much text is parsed at once: more is not faster, and takes memory."""


class JsonRecords(RecordFormat):
    """JSON objects, in the forms that `json_types` lists; one behind a registry's header, too."""

    def __init__(
        self,
        schema: pa.Schema,
        rules: DriftRules | None = None,
        *,
        optional: Collection[str] = (),
    ) -> None:
        """Read objects of a schema; its `optional` columns are missed by no rule."""
        self.schema = schema
        self._parser = JsonParser(schema, rules, optional)
        _check_types(schema)

    @override
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        present, places = find_present(values)
        lines = strip_registry_headers(join_lines(present))
        parse = partial(self._parse, lines)
        found = [*parse_stretches(lines.cut(STRETCH_BYTES), parse)]
        return collect_stretches(found, self.schema, places, len(values))

    @override
    def encode(self, rows: pa.Table) -> Bytes:
        _refuse_unwritable(rows.schema)
        if not rows.num_columns:
            return pa.array([b"{}"] * rows.num_rows, pa.binary())
        text = to_json_lines(rows)
        newlines = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == NEWLINE)
        return cut_lines(text, newlines + 1)

    @override
    def check_writable(self) -> None:
        _refuse_unwritable(self.schema)

    def _parse(self, lines: Lines, first: int, stop: int) -> pa.Table:
        stretch = lines.slice(first, stop)
        _check_objects(stretch)
        rows = self._parser.parse(stretch.text, stretch.to_list)
        if rows.num_rows != len(stretch):
            raise ValueError(f"it holds {rows.num_rows} objects instead of one")
        check_nulls(rows, self.schema)
        return rows.cast(self.schema) if rows.schema != self.schema else rows


def _check_objects(lines: Lines) -> None:
    """Raise ValueError unless each value is UTF-8, and begins and ends as an object does."""
    _check_utf8(lines)
    starts, ends = lines.offsets[:-1], lines.offsets[1:] - 1
    # The newline behind each value stands in for the first character of an empty one.
    is_object = lines.characters[starts] == _OPENING
    is_object &= lines.characters[np.maximum(ends - 1, 0)] == _CLOSING
    for index in np.flatnonzero(~is_object):
        value = strip_white(lines.value(int(index)))
        if not (value.startswith(b"{") and value.endswith(b"}")):
            raise BadRowError(_tell_apart(value), int(index))


def _check_utf8(lines: Lines) -> None:
    """Raise ValueError for bytes that Arrow would pass on as text."""
    try:
        str(lines.text, "utf-8")
    except UnicodeDecodeError as error:
        row = int(np.searchsorted(lines.offsets, error.start, side="right")) - 1
        raise BadRowError(name_registry(lines.value(row)) or str(error), row) from error


def _tell_apart(value: bytes) -> str:
    if not value:
        return "it is empty"
    return name_registry(value) or "it is not one JSON object"


def _check_types(schema: pa.Schema) -> None:
    """Refuse a schema with types that have no form in JSON."""
    try:
        read_objects(pa.py_buffer(b"{}\n"), schema, ignores_extra=True)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"the schema has a type that JSON is not read as: {error}. Read the column as text "
            "and convert it in a later step"
        ) from error
    except pa.ArrowInvalid:
        return  # the type can be parsed; only a null was refused


def _refuse_unwritable(schema: pa.Schema) -> None:
    problems = find_json_problems(schema)
    if problems:
        raise SchemaError("; ".join(problems))
