"""Ids, key ranges and checksums: the values that name things, valid by construction.

Pure. An id can be put into an object name without another check: it holds no separator, is
neither `.` nor `..`, is short, and so can never lead outside the job's prefix.

`owner_of` is the only rule that says which subtask owns which key hash: routing, restore and
compaction use it. `range_of` is its exact inverse. Intervals are `[start, end)` everywhere in
Penstock. `checksum_of` is the checksum of durable bytes: XXH3 with 64 bits, the same on every
machine.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias, TypeGuard

import xxhash

from penstock.errors import ErrorCode, UserError

HASH_SPACE = 1 << 64
"""One more than the largest key hash: the end of the full range."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The key hashes `start <= hash < end`; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= HASH_SPACE:
            raise UserError(
                f"[{self.start}, {self.end}) is not a key range: need 0 <= start < end <= 2**64",
                code=ErrorCode.INVALID_NUMBER,
                start=self.start,
                end=self.end,
            )

    def __contains__(self, key_hash: int) -> bool:
        return self.start <= key_hash < self.end

    def overlaps(self, other: "KeyRange") -> bool:
        """Tell whether both ranges share a hash; ranges that only touch do not."""
        return self.start < other.end and other.start < self.end

    def covers(self, other: "KeyRange") -> bool:
        """Tell whether every hash of `other` is in this range."""
        return self.start <= other.start and other.end <= self.end

    def intersection(self, other: "KeyRange") -> "KeyRange | None":
        """Return the hashes that both ranges hold, or None when they share none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyRange(start, end) if start < end else None


FULL_RANGE = KeyRange(0, HASH_SPACE)


def owner_of(key_hash: int, parallelism: int) -> int:
    """Return the index of the subtask that owns `key_hash`."""
    return (key_hash * parallelism) >> 64


def range_of(index: int, parallelism: int) -> KeyRange:
    """Return exactly the hashes that `owner_of` gives to subtask `index`."""
    return KeyRange(
        -(-index * HASH_SPACE // parallelism), -(-(index + 1) * HASH_SPACE // parallelism)
    )


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether `value` is a whole number; True and False do not count as numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


class _Text(str):
    """A string of one form, which each subclass declares."""

    __slots__ = ()
    what: ClassVar[str]
    form: ClassVar[re.Pattern[str]]
    problem: ClassVar[str]
    """The end of the error about a value of another form."""

    def __new__(cls, value: str) -> Self:
        """Validate `value`; a value that is already of this class gives an equal one."""
        given: object = value  # callers may be untyped
        if not isinstance(given, str) or cls.form.fullmatch(given) is None:
            raise UserError(
                f"{value!r} is not a {cls.problem.format(what=cls.what)}",
                code=ErrorCode.INVALID_NAME,
                value=repr(value),
            )
        return super().__new__(cls, value)


class Name(_Text):
    """A string of 1 to 128 letters, digits, `_`, `.` or `-` that starts with a letter or digit."""

    __slots__ = ()
    what = "name"
    form = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
    problem = (
        "valid {what}: use 1 to 128 of the letters A-Z a-z, digits, '_', '.' and '-', starting "
        "with a letter or digit"
    )


class JobId(Name):
    """The name of a job: the first segment of every object the job owns."""

    __slots__ = ()
    what = "job id"


class OperatorId(Name):
    """The stable name of an operator: the identity of its state."""

    __slots__ = ()
    what = "operator id"


class TableName(Name):
    """The name of a table inside one operator."""

    __slots__ = ()
    what = "table name"


class SavepointName(Name):
    """The name of a pinned epoch."""

    __slots__ = ()
    what = "savepoint name"


class Token(_Text):
    """128 random bits as 32 hex digits: names one attempt of one task, or one driver."""

    __slots__ = ()
    what = "token"
    form = re.compile(r"[0-9a-f]{32}")
    problem = "{what}: expected 32 lower-case hex digits"


class Ordinal(int):
    """A positive number that orders things and always fits its ten digits in a path."""

    __slots__ = ()
    what: ClassVar[str] = "number"
    largest: ClassVar[int] = 9_999_999_999

    def __new__(cls, value: int) -> Self:
        """Validate `value`; booleans and fractions are refused, not rounded."""
        if not is_whole(value) or not 1 <= value <= cls.largest:
            raise UserError(
                f"{value!r} is not a valid {cls.what}: expected a whole number from 1 to "
                f"{cls.largest}",
                code=ErrorCode.INVALID_NUMBER,
                value=repr(value),
            )
        return super().__new__(cls, value)

    def next(self) -> Self:
        """Return the number after this one."""
        return type(self)(self + 1)


class Epoch(Ordinal):
    """One checkpointed step of a job. Numbers only grow and are never reused."""

    __slots__ = ()
    what = "epoch"


class Generation(Ordinal):
    """One claim of a job by one driver. The highest claimed generation owns the job."""

    __slots__ = ()
    what = "generation"


@dataclass(frozen=True, slots=True)
class Subtask:
    """One of `parallelism` equal parts of an operator; it owns one key range."""

    index: int
    parallelism: int

    def __post_init__(self) -> None:
        are_whole = is_whole(self.index) and is_whole(self.parallelism)
        if not are_whole or not 0 <= self.index < self.parallelism <= 1_000_000:
            raise UserError(
                f"subtask {self.index!r} of {self.parallelism!r} does not exist: need "
                "0 <= index < parallelism <= 1,000,000",
                code=ErrorCode.INVALID_NUMBER,
                index=self.index,
                parallelism=self.parallelism,
            )

    @property
    def key_range(self) -> KeyRange:
        """The key hashes this subtask owns."""
        return range_of(self.index, self.parallelism)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The identity of a subtask, by which its state files are named and filtered."""

    job: JobId
    operator: OperatorId
    subtask: Subtask

    @property
    def key_range(self) -> KeyRange:
        """The key hashes this task owns."""
        return range_of(self.subtask.index, self.subtask.parallelism)


Readable: TypeAlias = bytes | bytearray | memoryview


def checksum_of(data: Readable) -> int:
    """Return the checksum of all of `data`."""
    return xxhash.xxh3_64_intdigest(data)
