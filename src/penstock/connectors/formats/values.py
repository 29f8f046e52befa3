"""Columns of bytes as one text, a line per value, without a copy per value.

A parser is fastest on one long text. `join_lines` makes it by one call of Arrow, `cut_lines`
takes printed lines apart; neither looks at values one at a time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NEWLINE = ord("\n")

Characters = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

_HEADER_BYTES = 5
_OPENING, _CLOSING = b"{}"
_WHITE = b" \t\r\n"
"""What JSON allows before and behind a value."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Values with a newline behind each, side by side."""

    text: pa.Buffer
    characters: Characters
    offsets: Offsets
    """Where each value begins, and behind the last the length of the text."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def cut(self, size_bytes: int) -> list[int]:
        """Return the values at which pieces of about a size begin, and the end of the last."""
        inner = np.arange(size_bytes, int(self.offsets[-1]), size_bytes)
        return [0, *np.searchsorted(self.offsets, inner).tolist(), len(self)]

    def to_list(self) -> list[bytes]:
        """Return the values one by one."""
        return [self.value(index) for index in range(len(self))]

    def value(self, index: int) -> bytes:
        """Return one of the values."""
        start, end = self.offsets[index], self.offsets[index + 1] - 1
        return self.characters[start:end].tobytes()

    def slice(self, first: int, stop: int) -> "Lines":
        """Return the values `[first, stop)`."""
        if first == 0 and stop == len(self):
            return self
        start, end = int(self.offsets[first]), int(self.offsets[stop])
        return Lines(
            self.text.slice(start, end - start),
            self.characters[start:end],
            self.offsets[first : stop + 1] - start,
        )


def join_lines(values: Any) -> Lines:
    """Return values, of which none is null, as one text."""
    wide = values.cast(pa.large_binary())
    newline, nothing = (pa.scalar(text, pa.large_binary()) for text in (b"\n", b""))
    # Arrow takes the last argument as what is put between the first two.
    joined: Any = pc.binary_join_element_wise(wide, newline, nothing)
    _, places, data = joined.buffers()
    text: Any = pa.py_buffer(b"") if data is None else data
    offsets = np.frombuffer(places, dtype=np.int64)[
        joined.offset : joined.offset + len(joined) + 1
    ]
    return Lines(text, np.frombuffer(text, dtype=np.uint8), offsets)


def cut_lines(text: bytes, ends: Offsets) -> Any:
    """Return the lines of a text as values, without the newline at the end of each.

    `ends` are the positions behind these newlines; every line has one.
    """
    offsets: Any = np.concatenate([[0], ends - np.arange(1, len(ends) + 1)])
    data: Any = text.replace(b"\n", b"")
    if len(data) != offsets[-1]:  # there are others inside of lines
        characters = np.frombuffer(text, dtype=np.uint8)
        kept = np.ones(len(characters), dtype=np.bool_)
        kept[ends - 1] = False
        data = characters[kept]
    if len(data) < 2**31:
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(ends), buffers)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)


def strip_registry_headers(lines: Lines) -> Lines:
    """Return values without the header of a schema registry: a zero byte and a schema's id.

    Only what is JSON by its first and last character is stripped; other bytes with that header
    stay as they are, and `name_registry` says what they are.
    """
    starts, lasts = lines.offsets[:-1], lines.offsets[1:] - 2
    has_header = lines.characters[starts] == 0
    if not has_header.any():
        return lines
    has_header &= np.diff(lines.offsets) > _HEADER_BYTES + 1
    firsts = np.where(has_header, starts + _HEADER_BYTES, starts)
    is_json = has_header & (lines.characters[firsts] == _OPENING)
    is_json &= lines.characters[np.maximum(lasts, 0)] == _CLOSING
    # White space may be around an object, and be the first byte of something else.
    for index in np.flatnonzero(has_header & ~is_json):
        body = strip_white(lines.value(int(index))[_HEADER_BYTES:])
        is_json[index] = body.startswith(b"{") and body.endswith(b"}")
    kept = np.ones(len(lines.characters), dtype=np.bool_)
    kept[starts[is_json, None] + np.arange(_HEADER_BYTES)] = False
    offsets = lines.offsets.copy()
    offsets[1:] -= np.cumsum(is_json) * _HEADER_BYTES
    characters: Any = lines.characters[kept]
    return Lines(pa.py_buffer(characters), characters, offsets)


def name_registry(value: bytes) -> str | None:
    """Return what a value with the header of a schema registry is; None for other values."""
    if len(value) < _HEADER_BYTES or value[0] != 0:
        return None
    schema_id = int.from_bytes(value[1:_HEADER_BYTES], "big")
    return (
        f"it has the header of a schema registry, with schema {schema_id}, and no JSON object "
        "behind it: it is Avro or Protobuf, which are not read. Give format='bytes' and decode it in a "
        "step, or have the producer write JSON"
    )


def strip_white(value: bytes) -> bytes:
    """Return a value without what JSON allows around it."""
    return value.strip(_WHITE)
