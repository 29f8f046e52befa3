"""Key ranges: which subtask owns which key hash.

Pure. `owner_of` is the one rule, used for routing, restore and compaction alike, and
`range_of` is its exact inverse. Intervals are `[start, end)` everywhere in Penstock.
"""

from dataclasses import dataclass

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
        """Tell whether the two share a hash; ranges that only touch do not."""
        return self.start < other.end and other.start < self.end

    def covers(self, other: "KeyRange") -> bool:
        """Tell whether every hash of `other` is in this range."""
        return self.start <= other.start and other.end <= self.end

    def intersection(self, other: "KeyRange") -> "KeyRange | None":
        """Return what both hold, or None when they share nothing."""
        if not self.overlaps(other):
            return None
        return KeyRange(max(self.start, other.start), min(self.end, other.end))


FULL_RANGE = KeyRange(0, HASH_SPACE)


def owner_of(key_hash: int, parallelism: int) -> int:
    """Return the index of the subtask that owns `key_hash`."""
    return (key_hash * parallelism) >> 64


def range_of(index: int, parallelism: int) -> KeyRange:
    """Return exactly the hashes that `owner_of` gives to subtask `index`."""
    return KeyRange(
        -(-index * HASH_SPACE // parallelism), -(-(index + 1) * HASH_SPACE // parallelism)
    )
