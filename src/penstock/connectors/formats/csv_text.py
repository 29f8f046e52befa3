"""Parses text of CSV rows without a header, the same for records and for files.

Arrow parses the rows. For Arrow all times of a column have a zone, or none has. As in JSON,
others are read, too: what has a zone is an instant, what has none is in UTC, and a column
without a zone holds the times in UTC. An empty field is null, except in a column of text, where
it is empty text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

NEWLINE = ord("\n")
_QUOTE = ord('"')
_IS_BESIDE_FIELDS = np.isin(np.arange(256), list(b',\r\n"'))
"""The characters that may stand before an opening or behind a closing quote. A doubled quote
stands beside another one."""


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ZONE = r"^[\d-]+[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
"""Matches times that have a zone; a date alone has none, though it ends like one."""


Ends: TypeAlias = npt.NDArray[np.int64]
"""The position behind each row of a text."""


def find_row_ends(characters: npt.NDArray[np.uint8]) -> Ends:
    """Return where the rows end: behind newlines that an even number of quotes precedes."""
    ends = np.flatnonzero(characters == NEWLINE) + 1
    quotes = np.flatnonzero(characters == _QUOTE)
    if not len(quotes):
        return ends
    return np.compress(np.searchsorted(quotes, ends) % 2 == 0, ends)


def check_quotes(characters: npt.NDArray[np.uint8]) -> None:
    """Refuse quotes that neither stand around a field nor are doubled inside of one."""
    quotes = np.flatnonzero(characters == _QUOTE)
    if not len(quotes):
        return
    if len(quotes) % 2:
        raise ValueError("a quote is not closed")
    before = _IS_BESIDE_FIELDS[characters[quotes[0::2] - 1]]
    after = _IS_BESIDE_FIELDS[characters[np.minimum(quotes[1::2] + 1, len(characters) - 1)]]
    # Where the text begins or ends a field does, too.
    before[0] |= quotes[0] == 0
    after[-1] |= quotes[-1] == len(characters) - 1
    if not (before.all() and after.all()):
        raise ValueError("a quote stands inside of a field, and is not doubled")


class CsvParser:
    """Parses rows, and remembers whether their times were odd. Used by one thread."""

    def __init__(self) -> None:
        self._has_odd_times = False
        """Times were found whose zone, or lack of it, is not that of their column."""

    def parse(
        self, text: bytes, columns: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> pa.Table:
        """Return the columns that have types, of rows that have `columns`."""
        if not self._has_odd_times:
            try:
                return read_rows(text, columns, types)
            except pa.ArrowInvalid:
                if not any(map(pa.types.is_timestamp, types.values())):
                    raise
        table = _read_odd_times(text, columns, types)
        # The next text is likely to hold such times, too: it is not parsed twice.
        self._has_odd_times = True
        return table


def read_rows(
    text: bytes, columns: Sequence[str], types: Mapping[str, pa.DataType] | None
) -> pa.Table:
    """Return the columns that have types; without types all, in those that Arrow finds."""
    if not text.strip(b"\r\n"):
        fields = [pa.field(name, (types or {}).get(name, pa.null())) for name in columns]
        return pa.schema(fields).empty_table()
    if text.startswith(_BYTE_ORDER_MARK):
        # Arrow drops a byte order mark at the start of a text, which here may be part of a
        # row. Behind an empty line it is kept.
        text = b"\n" + text
    reader: Any = pa.BufferReader(text)
    return pa_csv.read_csv(
        reader,
        read_options=pa_csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=list(columns)
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=None if types is None else dict(types),
            include_columns=None if types is None else list(types),
            null_values=[""],
            strings_can_be_null=False,
        ),
    )


def _read_odd_times(
    text: bytes, columns: Sequence[str], types: Mapping[str, pa.DataType]
) -> pa.Table:
    """Read columns of times as text, and convert what has a zone and what has none apart."""
    is_time = pa.types.is_timestamp
    as_text = {name: pa.string() if is_time(t) else t for name, t in types.items()}
    table = read_rows(text, columns, as_text)
    for index, (name, kind) in enumerate(types.items()):
        if is_time(kind):
            times = _parse_times(table.column(name), kind)
            table = table.set_column(index, name, times)
    return table


def _parse_times(texts: Any, kind: Any) -> Any:
    """Return timestamps of a column's type, from text with and without a zone."""
    has_zone = pc.match_substring_regex(texts, _ZONE)
    is_empty: Any = pc.equal(texts, pa.scalar(""))
    instants = pc.if_else(has_zone, texts, None).cast(pa.timestamp(kind.unit, "UTC"))
    rest = pc.if_else(pc.or_(has_zone, is_empty), None, texts)
    local = rest.cast(pa.timestamp(kind.unit))
    return pc.coalesce(instants.cast(local.type), local).cast(kind)
