"""The earliest instants of Parquet files, by which they are ordered, from their footers.

pyarrow's objects for statistics call C++ code that may throw, and do not catch that: one flipped
bit would end the process. So the few fields that tell an instant are decoded here, from Thrift's
compact form, and whatever is not as it should be is "not known".

    footer      1 version · 2 schema elements · 3 rows · 4 row groups
    element     1 physical type · 4 name · 5 children · 6 converted type · 10 logical type
    row group   1 columns · 3 rows          column  3 its metadata
    metadata    3 path · 5 values · 12 statistics
    statistics  3 nulls · 6 the least value
"""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from penstock.connectors.files.formats import SourceFile
from penstock.errors import hide_secrets
from penstock.state.storage.object_store import ObjectStore

NO_ROWS = 1 << 62
"""The earliest instant of a file without rows that have one: later than any."""
_READERS = 16
_log = logging.getLogger(__name__)
_MAGIC = b"PAR1"
_TAIL_BYTES = 64 << 10
_INT64 = 2
_MICROS_BY_CONVERTED = {9: (1_000, 1), 10: (1, 1)}
"""Factor and divisor to microseconds, by the older annotation of timestamps."""
_MICROS_BY_UNIT = {1: (1_000, 1), 2: (1, 1), 3: (1, 1_000)}
_TIMESTAMP = 8
_Struct: TypeAlias = Mapping[int, Any]


def in_order(
    listed: Mapping[str, int], store: ObjectStore, column: str | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return files in the order of a column's least values, and these in microseconds.

    `listed` has the sizes by path. It reads all footers, several at a time. If some do not tell,
    or no column is given, the order stays as it is, and the values are empty.
    """
    if column is None:
        return dict(listed), {}
    files = [SourceFile(store, path, size_bytes) for path, size_bytes in listed.items()]
    with ThreadPoolExecutor(_READERS) as readers:
        found = list(readers.map(lambda file: find_earliest(file, column), files))
    known = [(at, path) for path, at in zip(listed, found, strict=True) if at is not None]
    if len(known) < len(found):
        silent = next(path for path, at in zip(listed, found, strict=True) if at is None)
        _log.warning(
            "files of %s are read in order of name: %s does not tell the earliest %r",
            hide_secrets(store.url),
            silent,
            column,
        )
        return dict(listed), {}
    earliest = {path: at for at, path in sorted(known)}
    return {path: listed[path] for path in earliest}, earliest


_DAMAGED = (
    *(AttributeError, IndexError, KeyError, TypeError),
    *(RecursionError, StopIteration, ValueError),
)
"""What reading values of other kinds than a footer has may raise."""


def find_earliest(file: SourceFile, column: str) -> int | None:
    """Return the earliest instant of a column, in microseconds; None if the footer does not tell.

    An instant between two microseconds becomes the earlier one.
    """
    footer = _read_footer(file)
    if footer is None:
        return None
    try:
        return _earliest(_Thrift(footer).struct(), column)
    except _DAMAGED:
        return None


def _read_footer(file: SourceFile) -> bytes | None:
    length = min(_TAIL_BYTES, file.size_bytes)
    tail = file.read_range(file.size_bytes - length, length)
    if len(tail) < 8 or tail[-4:] != _MAGIC:
        return None
    size = int.from_bytes(tail[-8:-4], "little")
    if size + 8 > file.size_bytes:
        return None
    if size + 8 > len(tail):
        return file.read_range(file.size_bytes - size - 8, size)
    return tail[-8 - size : -8]


def _earliest(footer: _Struct, column: str) -> int | None:
    scale = _scale_of(footer[2], column)
    if scale is None:
        return None
    factor, divisor = scale
    found = [NO_ROWS]
    for group in footer.get(4, ()):
        chunks = [c[3] for c in group[1] if c[3][3] == [column.encode()]]
        if len(chunks) != 1:
            return None
        told = chunks[0].get(12, {})
        if 6 in told and len(told[6]) == 8:
            found.append(int.from_bytes(told[6], "little", signed=True) * factor // divisor)
        elif group[3] and told.get(3) != chunks[0][5]:
            return None  # it has values, and their least one is not told
    return min(found)


def _scale_of(elements: list[_Struct], column: str) -> tuple[int, int] | None:
    """Return factor and divisor to microseconds of a column of the first level."""
    index = 1
    while index < len(elements):
        element = elements[index]
        if element[4] == column.encode():
            if element.get(1) != _INT64:
                return None
            logical = element.get(10, {}).get(_TIMESTAMP)
            if logical is not None:
                return _MICROS_BY_UNIT.get(next(iter(logical[2])))
            return _MICROS_BY_CONVERTED.get(element.get(6, -1))
        index = _behind(elements, index)
    return None


def _behind(elements: list[_Struct], index: int) -> int:
    """Return the index behind an element and all below it."""
    children = elements[index].get(5, 0)
    index += 1
    for _ in range(children):
        index = _behind(elements, index)
    return index


class _Thrift:
    """Decodes structs of Thrift's compact form into values by field number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 15
            number = number + delta if delta else self._zigzag()
            # Of a field that is a boolean, the type is the value.
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return found

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        raise ValueError(f"there is no type {kind} in a footer")

    def _list(self) -> list[Any]:
        header = self._byte()
        size, kind = header >> 4, header & 15
        if size == 15:
            size = self._varint()
        return [self._value(kind) for _ in range(size)]

    def _byte(self) -> int:
        found = self._data[self._at]
        self._at += 1
        return found

    def _bytes(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise IndexError("the footer ends within a value")
        self._at += length
        return found

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
