"""Reads files of lines, JSON objects or text as it is, and writes JSON lines with all columns.

Which form a value has is said in `formats/json_types`. A key that is absent is null. Blank
lines are passed over, and an array or an object that goes over several lines is refused as a
whole.

Of text as it is each line is a row, blank ones too. The line is the first column of the schema, and
others are told by the file's folders. A carriage return before the newline is no part of it.
"""

import io
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.connectors.files.compressed import TextInput
from penstock.connectors.files.formats import SourceFile
from penstock.connectors.files.parsed_text import ParsedText
from penstock.connectors.files.text import NEWLINE, Heading, mark_length
from penstock.connectors.formats.halving import BadRowsError
from penstock.connectors.formats.json_parser import JsonParser
from penstock.connectors.formats.json_text import infer_columns, to_json_lines
from penstock.connectors.formats.text_records import VALUE
from penstock.connectors.formats.values import cut_lines
from penstock.core.arrow_types import is_text
from penstock.errors import SchemaError

_OPENING, _CLOSING, _CARRIAGE_RETURN = b"{}\r"


class JsonLinesFormat(ParsedText):
    """Reads JSON lines, in the forms that the files sink writes."""

    def __init__(self, schema: pa.Schema, **options: Any) -> None:
        super().__init__(schema, **options)
        self._parser = JsonParser(schema, self.rules)

    @override
    def row_without_values(self) -> bytes:
        return b"{}\n"

    @override
    def count_rows(self, text: bytes) -> int:
        """Return how many lines are not blank; each must look like an object.

        Arrow treats a newline as any other white space, but inside an object that is not
        closed no line can begin with a brace. So if Arrow gives as many rows as there are such
        lines, each line gave exactly one.
        """
        characters = np.frombuffer(text, dtype=np.uint8)
        newlines = np.flatnonzero(characters == NEWLINE)
        starts = np.concatenate([[0], newlines + 1])
        lasts = np.append(newlines, len(text)) - 1
        if starts[-1] == len(text):
            starts, lasts = starts[:-1], lasts[:-1]
        lasts -= characters[lasts] == _CARRIAGE_RETURN
        is_odd = (characters[starts] != _OPENING) | (characters[lasts] != _CLOSING)
        blank = 0
        for index in np.flatnonzero(is_odd | (lasts < starts)):
            line = text[starts[index] : lasts[index] + 1].strip()
            blank += not line
            if line and not (line.startswith(b"{") and line.endswith(b"}")):
                raise ValueError("it is not one JSON object")
        return len(starts) - blank

    @override
    def parse(self, text: bytes, heading: Heading) -> pa.Table:
        try:
            return self._parser.parse(text, partial(_split, text))
        except BadRowsError as error:
            # Blank lines count as lines, and are no records.
            lines = enumerate(text.split(b"\n"))
            raise error.at([place for place, line in lines if line.strip()]) from error

    @override
    def parse_sample(self, text: bytes, heading: Heading) -> pa.Table:
        _refuse_document(text)
        return infer_columns(text).empty_table()

    @override
    def read_heading(self, file: SourceFile, source: TextInput) -> Heading:
        """Return nothing, or a byte order mark."""
        length = mark_length(source.read(0, 3))
        return Heading(length, folders=self.folders_of(file, ()))


class LinesFormat(ParsedText):
    """Reads lines of UTF-8; one that is not is bad."""

    @override
    def check_types(self) -> None:
        """Refuse a schema whose first column is not text."""
        if not (self.schema.names and is_text(self.schema.types[0])):
            raise SchemaError(
                "lines of text are the first column of the schema, which has to be text: the "
                f"schema has {', '.join(f'{f.name!r} of type {f.type}' for f in self.schema)}. "
                "Read the line as text and convert it in a later step"
            )

    @override
    def row_without_values(self) -> bytes:
        return b"\n"

    @override
    def count_rows(self, text: bytes) -> int:
        return text.count(b"\n") + (not text.endswith(b"\n"))

    @override
    def parse(self, text: bytes, heading: Heading) -> pa.Table:
        whole = text if text.endswith(b"\n") else text + b"\n"
        lines: Any = cut_lines(whole, self.find_row_ends(whole)).cast(pa.large_string())
        if b"\r\n" in whole:
            lines = pc.replace_substring_regex(lines, r"\r\z", "")
        field = self.schema.field(0)
        return pa.table({field.name: lines.cast(field.type)})

    @override
    def parse_sample(self, text: bytes, heading: Heading) -> pa.Table:
        return pa.schema([(VALUE, pa.string())]).empty_table()

    @override
    def read_heading(self, file: SourceFile, source: TextInput) -> Heading:
        """Return nothing, or a byte order mark, after checking what the folders tell."""
        own = self.schema.names[:1]
        if own:
            self.check_columns(file, pa.schema([self.schema.field(0)]))
        length = mark_length(source.read(0, 3))
        return Heading(length, folders=self.folders_of(file, own))


class JsonLinesPart:
    """A file of JSON lines being written in memory. Used by one thread, closed once."""

    def __init__(self) -> None:
        self._out = io.BytesIO()

    def write(self, rows: pa.Table) -> int:
        """Add a line per row; return how many bytes the file has."""
        self._out.write(to_json_lines(rows))
        return self._out.tell()

    def close(self) -> bytes:
        """Return the whole file."""
        return self._out.getvalue()


def _split(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if line.strip()]


def _refuse_document(text: bytes) -> None:
    """Raise ValueError for an array, or an object over several lines: both are no JSON lines."""
    line = text.strip().partition(b"\n")[0].rstrip()
    if line.startswith(b"[") or (line.startswith(b"{") and not line.endswith(b"}")):
        begun = "an array" if line.startswith(b"[") else "an object of several lines"
        raise ValueError(
            f"it begins with {begun}, and JSON lines hold one object per line. Convert it, for "
            "instance with `jq -c '.[]'` for an array, or `jq -c .` for objects"
        )
