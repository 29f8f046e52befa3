"""Rows of files that cannot be read: as a stream of their own, or as an error. Pure."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.files_formats import BadRow, SourceFile
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("path", pa.string()),
    ("line", pa.int64()),
    ("text", pa.string()),
    ("error", pa.string()),
]
BAD_ROWS = StreamSchema(pa.schema(_COLUMNS))
"""What the side output `BAD` of a files source holds."""

_SAMPLE_CHARACTERS = 200


def to_table(file: SourceFile, bad: Sequence[BadRow]) -> pa.Table:
    """Return bad rows as rows; what is no UTF-8 is replaced."""
    columns = {
        "path": [file.path] * len(bad),
        "line": [row.line for row in bad],
        "text": [row.text.decode(errors="replace") for row in bad],
        "error": [row.error for row in bad],
    }
    return pa.table(columns, schema=BAD_ROWS.schema)


def bad_row_error(file: SourceFile, row: BadRow) -> UserError:
    """Make the error of a row that cannot be read, for who does not want it aside."""
    text = row.text[: 4 * _SAMPLE_CHARACTERS].decode(errors="replace")
    if len(text) > _SAMPLE_CHARACTERS:
        text = text[:_SAMPLE_CHARACTERS] + "…"
    return UserError(
        f"{file}, line {row.line}, cannot be read: {row.error}. The row is {text!r}. Correct "
        'the schema, or pass on_bad="side" to have such rows in the side output "bad"',
        code=ErrorCode.UNREADABLE_INPUT,
        path=file.path,
        line=row.line,
    )
