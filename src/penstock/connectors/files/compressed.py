"""The text of a file, whether it is compressed or not: read by position, and where it ends.

Positions count the bytes of the text, so an offset in a compressed file is one in what it holds.
Nothing in it can be sought. A range that begins in the midst is reached by decompressing what
precedes it, a block at a time, and dropping it: so memory is bounded, and a retry reads
the same bytes. To spare that where one process reads range after range, a text that was not read
to its end is left open for the next range, a few at most.

How long a compressed text is, nobody knows before its end. The plan of an epoch goes by the share
of the file that its first bytes make up; a range may reach beyond the end, where there is
nothing, or fall short of it, and then the next epoch goes on.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from penstock.connectors.files.formats import SourceFile
from penstock.errors import ErrorCode, UserError

COMPRESSIONS: Final[Mapping[str, str]] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".bz2": "bz2",
    ".lz4": "lz4",
    ".br": "brotli",
}
"""Arrow's codec of each ending."""
UNREADABLE: Final = (".xz", ".snappy", ".sz", ".zip", ".Z", ".7z")
"""Endings of compressed files that Arrow does not read as a stream."""

_BLOCK_BYTES = 1 << 20
_SAMPLE_BYTES = 64 << 10
_SAMPLE_STEP_BYTES = 4 << 10
_USUAL_EXPANSION = 4.0
"""Of files whose start tells nothing, as of bz2, which has large blocks."""
_HEAD_BYTES = 64 << 10
"""How much of a text's start is kept, for whoever reads its heading again."""


class TextInput(Protocol):
    """The text of one file. Used by one thread."""

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the text; fewer than asked for only where it ends."""
        ...

    def is_end(self, position: int) -> bool:
        """Return whether no byte of the text is at a position or behind it."""
        ...


class PlainText:
    """A file that is text itself."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def read(self, start: int, length: int) -> bytes:
        """Return a range of the file."""
        return self._file.read_range(start, min(length, self._file.size_bytes - start))

    def is_end(self, position: int) -> bool:
        """Return whether the file ends there."""
        return position >= self._file.size_bytes


class CompressedText:
    """A file that holds text. It is read forwards; a step back begins it again."""

    _left_open: ClassVar[OrderedDict[tuple[str, int], "CompressedText"]] = OrderedDict()
    """Texts of this process that were left before their end, the one left last at the end."""
    _most_open: ClassVar[int] = 4

    def __init__(
        self, file: SourceFile, codec: str, block_bytes: int = _BLOCK_BYTES
    ) -> None:
        self._file = file
        self._codec = codec
        self._block_bytes = block_bytes
        self._begin()

    @classmethod
    def take(cls, file: SourceFile, codec: str) -> "CompressedText":
        """Return the text, where it was left if this process has left it open."""
        left = cls._left_open.pop((str(file), file.size_bytes), None)
        return cls(file, codec) if left is None else left

    def leave(self) -> None:
        """Leave the text open for the next range, unless it is at its end."""
        # A store in memory may be gone, and another have its name.
        if self._is_done or str(self._file).startswith("memory:"):
            return
        self._left_open[str(self._file), self._file.size_bytes] = self
        while len(self._left_open) > self._most_open:
            self._left_open.popitem(last=False)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the text; those before them are decompressed and dropped."""
        if start + length <= len(self._head):
            return self._head[start : start + length]
        if start < self._held_from:
            self._begin()
        self._fill(start, start + length)
        at = start - self._held_from
        with memoryview(self._held) as held:
            return bytes(held[at : at + length])

    def is_end(self, position: int) -> bool:
        """Return whether the text ends there, which takes decompressing one byte more."""
        if position < self._held_from:
            return False
        self._fill(position, position + 1)
        return position >= self._held_from + len(self._held)

    def _begin(self) -> None:
        blocks: Any = _Blocks(self._file)
        self._stream = _decompress(pa.PythonFile(blocks, mode="r"), self._codec)
        self._held = bytearray()
        """Bytes of the text that were decompressed and not yet dropped."""
        self._held_from = 0
        self._head = b""
        self._is_done = False

    def _fill(self, start: int, end: int) -> None:
        """Hold the bytes `[start, end)`, as far as there are, and none before them."""
        while not self._is_done and self._held_from + len(self._held) < end:
            self._drop_before(start)
            block = self._decompress()
            self._is_done = not block
            self._held += block
            if len(self._head) < _HEAD_BYTES:
                self._head += block[: _HEAD_BYTES - len(self._head)]
        self._drop_before(start)

    def _drop_before(self, start: int) -> None:
        count = min(start - self._held_from, len(self._held))
        if count > 0:
            del self._held[:count]
            self._held_from += count

    def _decompress(self) -> bytes:
        try:
            return bytes(self._stream.read(self._block_bytes))
        except OSError as error:
            raise UserError(
                f"{self._file} cannot be decompressed as {self._codec}, by its ending: {error}. "
                "It is damaged, cut short, or compressed otherwise. Bring the file back as it "
                "was, or move it away",
                code=ErrorCode.UNREADABLE_INPUT,
                path=self._file.path,
            ) from error


class _Blocks:
    """The bytes of a file as Arrow reads them: one after the other, as many as it asks for."""

    closed = False

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, length: int) -> bytes:
        block = self._file.read_range(
            self._at, min(max(length, 0), self._file.size_bytes - self._at)
        )
        self._at += len(block)
        return block

    def close(self) -> None:
        self.closed = True


def codec_of(path: str) -> str | None:
    """Return Arrow's name of the compression of a file, by its ending; None for none.

    >>> codec_of("2026/bids.jsonl.gz"), codec_of("2026/bids.jsonl")
    ('gzip', None)
    """
    return next((c for end, c in COMPRESSIONS.items() if path.endswith(end)), None)


def open_text(file: SourceFile) -> PlainText | CompressedText:
    """Return the text of a file, to be read from its start."""
    codec = codec_of(file.path)
    return PlainText(file) if codec is None else CompressedText(file, codec)


def resume_text(file: SourceFile) -> PlainText | CompressedText:
    """Return the text of a file, where this process left it if it is compressed."""
    codec = codec_of(file.path)
    return PlainText(file) if codec is None else CompressedText.take(file, codec)


def measure_expansion(file: SourceFile, codec: str) -> float:
    """Return about how many bytes of text a byte of a compressed file holds, by its start."""
    sample = file.read_range(0, min(_SAMPLE_BYTES, file.size_bytes))
    stream = _decompress(pa.BufferReader(sample), codec)
    size_bytes = 0
    try:
        while block := stream.read(_SAMPLE_STEP_BYTES):
            size_bytes += len(block)
    except OSError:
        pass  # the sample ends in the midst of the file; one that is damaged is named when read
    return size_bytes / len(sample) if size_bytes else _USUAL_EXPANSION


def _decompress(stream: Any, codec: Any) -> pa.CompressedInputStream:
    return pa.CompressedInputStream(stream, codec)
