"""QuickJson: flat JSON by Polars, which parses it faster than Arrow, where both give the same rows.

Polars is lenient where Arrow is strict, and says nothing: a number becomes text where text is
wanted, of a key that occurs twice the first counts, and half a surrogate pair becomes another
character. So its rows are taken only if it is certain that Arrow would give them, too; otherwise
there are none, and Arrow is asked. Which of the two parses a text never shows in its rows.

How it is certain: there is no backslash in the text, so there are no escapes, and quotes stand
around keys and strings alone. No text that was found could be a number, a boolean, an object or
an array. Then a row has at least two quotes for each value that was found, around its key, and
two more if the value is text. If the whole text has no more quotes than that, no row has: each
key occurs once, none is there that was not read, and none is null but by its absence.
Keys that are to be skipped are read, too, to be counted: those of the first record.

Texts of many producers are so: whole numbers, fractions and plain text, each column in each
record. Where a text is not, its first record mostly shows it, before anything is parsed in vain;
and the next ones are likely not to be, either, and are left to Arrow for a while.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_QUOTE, _BACKSLASH = b'"\\'
_IS_SUSPECT: Final = np.isin(np.arange(256), list(b"-0123456789tf{["))
"""The first characters of text that could have been something else."""
_SOMETHING_ELSE: Final = r"^(-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|[\[{].*)$"
NEGATIVE_ZERO: Final = re.compile(rb"-0(?![0-9.eE])")
"""Matches a zero with a sign and nothing else, and some text."""
_MIN_BYTES: Final = 64 << 10
"""Shorter texts are parsed faster by Arrow, which takes less time to begin."""
_MOST_PASSED_OVER: Final = 1 << 10

_KINDS: Final[Mapping[pa.DataType, type[pl.DataType]]] = {
    pa.int64(): pl.Int64,
    pa.float64(): pl.Float64,
    pa.bool_(): pl.Boolean,
    pa.string(): pl.String,
    pa.large_string(): pl.String,
}
"""The types that both read alike. Narrower floats would be rounded twice."""
_PLAIN_KINDS: Final[Mapping[type, type[pl.DataType]]] = {
    int: pl.Int64,
    float: pl.Float64,
    bool: pl.Boolean,
    str: pl.String,
}
"""How values of keys are read that are skipped."""


class QuickJson:
    """Parses texts for one schema. Used by one thread."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        ignores_extra: bool = False,
        min_bytes: int = _MIN_BYTES,
    ) -> None:
        """Parse for a schema; keys that it does not name are skipped, or Arrow refuses them."""
        self._schema = schema
        self._ignores_extra = ignores_extra
        self._min_bytes = min_bytes
        kinds = {field.name: _kind_of(field.type) for field in schema}
        self._kinds: Any = kinds
        self._is_flat = bool(kinds) and None not in kinds.values()
        self._passed_over = 0
        """How many texts are still left to Arrow."""
        self._next_passed_over = 1

    def parse(self, text: Any) -> pa.Table | None:
        """Return the rows of a text; None where Arrow must say what they are.

        The text has an object per line, and nothing else but blank lines.
        """
        if not self._is_flat or len(text) < self._min_bytes:
            return None
        if self._passed_over:
            self._passed_over -= 1
            return None
        rows = self._parse(text)
        if rows is None:
            self._passed_over = self._next_passed_over
            self._next_passed_over = min(4 * self._next_passed_over, _MOST_PASSED_OVER)
        else:
            self._next_passed_over = 1
        return rows

    def _parse(self, text: Any) -> pa.Table | None:
        characters = np.frombuffer(text, dtype=np.uint8)
        extra = self._find_extra(text)
        if extra is None or (characters == _BACKSLASH).any():
            return None
        try:
            found = pl.read_ndjson(bytes(text), schema={**self._kinds, **extra})
            columns = [_to_column(found[field.name], field.type) for field in self._schema]
            skipped = [found[name].to_arrow() for name in extra]
        except (pl.exceptions.PolarsError, pa.ArrowInvalid):
            return None
        if any(_may_be_something_else(column) for column in (*columns, *skipped)):
            return None
        told = sum(
            (len(values) - values.null_count()) * (4 if values.dtype == pl.String else 2)
            for values in found
        )
        if np.count_nonzero(characters == _QUOTE) != told:
            return None
        if any(_has_zero(column) for column in columns) and NEGATIVE_ZERO.search(text):
            return None  # Polars drops its sign
        return pa.Table.from_arrays(columns, self._schema.names)

    def _find_extra(self, text: Any) -> Mapping[str, type[pl.DataType]] | None:
        """Return the keys to be skipped that the first record of a text has, and their types.

        None if it has anything that would be left to Arrow.
        """
        line = bytes(memoryview(text)[:_MIN_BYTES]).partition(b"\n")[0]
        try:
            first = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(first, dict) or any(
            isinstance(value, str) and re.fullmatch(_SOMETHING_ELSE, value)
            for value in first.values()
        ):
            return None
        extra = {
            name: _PLAIN_KINDS.get(type(value))
            for name, value in first.items()
            if value is None or name not in self._kinds
        }
        if (extra and not self._ignores_extra) or None in extra.values():
            return None
        return {name: kind for name, kind in extra.items() if kind is not None}


def _has_zero(column: Any) -> bool:
    is_float = pa.types.is_floating(column.type)
    return is_float and bool((column.to_numpy(zero_copy_only=False) == 0.0).any())


def _kind_of(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pl.String
    return _KINDS.get(kind)


def _to_column(values: pl.Series, kind: Any) -> Any:
    """Return values in a column's type; raise for text that is no timestamp for sure."""
    column: Any = values.to_arrow()
    return column if column.type.equals(kind) else column.cast(kind)


def _may_be_something_else(column: Any) -> bool:
    """Tell whether a text could have been a number, a boolean, an object or an array.

    A timestamp could not: its text has hyphens between digits.
    """
    is_large = pa.types.is_large_string(column.type)
    if not (is_large or pa.types.is_string(column.type)) or not len(column):
        return False
    _, places, data = column.buffers()
    offsets: Any = np.frombuffer(places, np.int64 if is_large else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    if offsets[-1] == offsets[0]:
        return False
    starts = np.minimum(offsets[:-1], offsets[-1] - 1)
    suspects = np.flatnonzero(_IS_SUSPECT[np.frombuffer(data, np.uint8)[starts]])
    if not len(suspects):
        return False
    chosen = column.take(pa.array(suspects))
    return bool(pc.any(pc.match_substring_regex(chosen, _SOMETHING_ELSE)).as_py())
