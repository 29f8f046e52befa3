"""TextFormat: rows as text, compressed or not, read in pieces of some megabytes cut at row ends.

A row belongs to the range in which it begins, so a range that ends in the midst of a row
takes the whole row, and the next range begins after it. What rows mean is for others to say:
`parsed_text` parses them here, `record_lines` hands them to a format of records.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.compressed import (
    CompressedText,
    TextInput,
    codec_of,
    measure_expansion,
    open_text,
    resume_text,
)
from penstock.connectors.files.folders import Folders
from penstock.connectors.files.formats import (
    Allowance,
    FileFormat,
    FileOffset,
    Piece,
    Reach,
    SourceFile,
)
from penstock.errors import ErrorCode, UserError

PIECE_BYTES = 4 << 20
MAX_ROW_BYTES = 64 << 20
NEWLINE = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FEW_ROWS_BYTES = 64 << 10
_LEAST_SEEMING_BYTES = 4 << 10

Ends: TypeAlias = npt.NDArray[np.int64]
"""The position behind each row of a text."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What precedes the rows of a file."""

    length: int = 0
    lines: int = 0
    columns: tuple[str, ...] = ()
    folders: Folders = field(default_factory=dict)
    """What the file's folders tell about columns that it does not have, or may not have."""


class TextFormat(FileFormat):
    """Rows as text. Subclasses find the ends of rows and say what they hold."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        piece_bytes: int = PIECE_BYTES,
        max_row_bytes: int = MAX_ROW_BYTES,
        **options: Any,
    ) -> None:
        super().__init__(schema, **options)
        self.row_bytes: float | None = None
        """The average size of a row; None before any was read."""
        self._expansion: float | None = None
        """How many bytes of text a byte of compressed files holds; None before any was read."""
        self._piece_bytes = piece_bytes
        self._max_row_bytes = max_row_bytes

    def find_row_ends(self, text: bytes) -> Ends:
        """Return where the complete rows of a text end that begins with a row: here lines."""
        return np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == NEWLINE) + 1

    @abstractmethod
    def read_heading(self, file: SourceFile, source: TextInput) -> Heading:
        """Return what precedes the rows, after checking that it fits the schema."""

    @abstractmethod
    def parse_rows(
        self,
        text: bytes,
        ends: Ends,
        heading: Heading,
        at: FileOffset,
        *,
        is_last: bool,
    ) -> Iterator[Piece]:
        """Parse a text of whole rows: it begins `at` a place of the file, its rows end at `ends`.

        At least one piece, and the last one goes to the end of the text; `is_last` says that the
        file ends there. Rows that cannot be parsed become bad rows with the reason.
        """

    @override
    def reach(
        self, file: SourceFile, start: FileOffset, allowance: Allowance
    ) -> Reach | None:
        """Take the bytes that fit, at most those that hold about the rows that fit."""
        row_bytes = self._estimate_row_bytes(file, start)
        fitting = int(min(allowance.size_bytes, allowance.rows * row_bytes))
        fitting = max(fitting, 1 if allowance.is_first else 0)
        codec = codec_of(file.path)
        if codec is not None:
            return self._reach_compressed(file, codec, start, fitting, row_bytes)
        rest = file.size_bytes - start.position
        taken = min(rest, fitting)
        if rest and not taken:
            return None
        end = start.position + taken
        return Reach(end, taken / row_bytes, taken, end == file.size_bytes)

    def _reach_compressed(
        self,
        file: SourceFile,
        codec: str,
        start: FileOffset,
        fitting: int,
        row_bytes: float,
    ) -> Reach | None:
        """Take what fits, and no more than twice what the file seems to have left.

        Small files are many, and each is likely to be read whole. One that turns out to be
        longer goes on in the next epoch.
        """
        if not fitting:
            return None
        if self._expansion is None:
            self._expansion = measure_expansion(file, codec)
        rest = int(file.size_bytes * self._expansion) - start.position
        # Behind the end that the start of the file suggests, steps grow with what was found.
        seeming = max(rest, start.position // 4, _LEAST_SEEMING_BYTES)
        taken, most = min(fitting, seeming), min(fitting, 2 * seeming)
        is_whole = most == 2 * seeming
        return Reach(start.position + most, taken / row_bytes, taken, is_whole)

    @override
    def read(self, file: SourceFile, start: FileOffset, end: int) -> Iterator[Piece]:
        """Read the rows that begin before `end`, a few megabytes at a time."""
        if file.size_bytes == 0:
            yield Piece((), (), start, is_last=True)
            return
        source = resume_text(file)
        heading = self.read_heading(file, source)
        at = start
        if at.position == 0:
            at = FileOffset(file.size_bytes, heading.length, heading.lines)
        is_last = source.is_end(at.position)
        yield Piece((), (), at, is_last=is_last)
        while at.position < end and not is_last:
            text, ends = self._read_window(
                file,
                source,
                at.position,
                min(self._piece_bytes, end - at.position + _FEW_ROWS_BYTES),
                "has no end of a row within {length} bytes after byte {start}: it is not of "
                "this format, or a quote is not closed",
            )
            # The row that begins last before `end` is taken whole, the next one is not.
            last = min(int(np.searchsorted(ends, end - at.position)), len(ends) - 1)
            ends = ends[: last + 1]
            is_last = source.is_end(at.position + int(ends[-1]))
            for piece in self.parse_rows(
                text[: ends[-1]], ends, heading, at, is_last=is_last
            ):
                yield piece
                at = piece.next or at
        if isinstance(source, CompressedText):
            source.leave()

    def _read_window(
        self, file: SourceFile, source: TextInput, start: int, length: int, complaint: str
    ) -> tuple[bytes, Ends]:
        """Return text with at least one whole row, and where its rows end.

        It is about `length` bytes long, or longer if the first row is; a row that is too long
        is refused with the complaint. The last row of a file needs no newline.
        """
        while True:
            text = source.read(start, length)
            ends = self.find_row_ends(text)
            is_rest = source.is_end(start + len(text))
            if is_rest and not (len(ends) and ends[-1] == len(text)):
                ends = np.append(ends, len(text))
            if len(ends):
                return text, ends
            if length >= self._max_row_bytes:
                raise UserError(
                    f"{file} {complaint.format(length=length, start=start)}. Correct the file, "
                    "or move it away",
                    code=ErrorCode.UNREADABLE_INPUT,
                    path=file.path,
                )
            length *= 2

    def _estimate_row_bytes(self, file: SourceFile, start: FileOffset) -> float:
        if start.lines > 1:
            return max(1.0, start.position / start.lines)
        if self.row_bytes is None:
            sample = open_text(file).read(0, _FEW_ROWS_BYTES)
            self.row_bytes = max(1.0, len(sample) / max(1, sample.count(b"\n")))
        return self.row_bytes


def mark_length(text: bytes) -> int:
    """Return how many bytes a byte order mark takes at the start of a file."""
    return len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
