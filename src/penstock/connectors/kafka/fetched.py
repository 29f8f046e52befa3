"""What a consumer has given of one partition: the records of a range, and those behind it.

Pure but for the messages of the client library, which it takes apart. The records of a range
wait here until they are handed out, and those behind it until an epoch wants them.

    fetched   the offset behind everything that the consumer has given or passed over
    handed    the offset behind everything that was handed out: an epoch that begins there goes on
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple

from penstock.connectors.kafka.records import Chunk

RECORDS_PER_PIECE = 100_000
BYTES_PER_PIECE = 16 << 20
"""About how much is handed out at once, so that decoding has enough to do."""
MOST_HELD = 100_000
MOST_HELD_BYTES = 64 << 20
"""How many records behind a range are held, and how large, before a partition is paused; and
how large those are that wait for their turn."""
_offset_of = methodcaller("offset")


class Range(NamedTuple):
    """The offsets `[start, end)` of a partition, as one epoch reads them."""

    start: int
    end: int


@dataclass(slots=True)
class Fetch:
    """What the consumer has given of one partition."""

    handed: int
    fetched: int
    end: int
    """The end of the range that is being read, or was."""
    chunks: list[Chunk] = field(default_factory=list)
    """Records before the end that were not handed out."""
    rows: int = 0
    size_bytes: int = 0
    later: list[Chunk] = field(default_factory=list)
    """Records at or behind the end, in order. Not messages: so many would be slow to keep, as
    Python looks through them for garbage again and again."""
    later_rows: int = 0
    later_bytes: int = 0
    is_paused: bool = False

    def add(self, messages: Sequence[Any], kinds: Collection[str]) -> None:
        """Take messages that came, but for those that came before."""
        if messages[0].offset() < self.fetched:
            messages = messages[bisect_left(messages, self.fetched, key=_offset_of) :]
        if not messages:
            return
        self.fetched = messages[-1].offset() + 1
        if self.fetched > self.end:
            cut = bisect_left(messages, self.end, key=_offset_of)
            self._hold(Chunk.of(messages[cut:], kinds, can_be_cut=True))
            messages = messages[:cut]
        if messages:
            self._take_in(Chunk.of(messages, kinds))

    def begin(self, end: int) -> None:
        """Go on with the next range, with what came for it already."""
        later, self.later, self.later_rows, self.later_bytes = self.later, [], 0, 0
        self.end = end
        for chunk in later:
            mine, behind = chunk.cut(end)
            if mine is not None:
                self._take_in(mine)
            if behind is not None:
                self._hold(behind)

    def _take_in(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.rows += len(chunk.offsets)
        self.size_bytes += chunk.size_bytes

    def _hold(self, chunk: Chunk) -> None:
        self.later.append(chunk)
        self.later_rows += len(chunk.offsets)
        self.later_bytes += chunk.size_bytes

    def can_go_on(self, wanted: Range) -> bool:
        """Return whether the next range can be read with what came already."""
        # Of an epoch that was broken off records may be there that are behind a shorter range.
        is_whole = not self.chunks or wanted.end >= self.end
        return self.handed == wanted.start and is_whole

    @property
    def holds_much(self) -> bool:
        """Whether more should not come before an epoch wants it, or before it is its turn."""
        is_ahead = self.later_rows > MOST_HELD or self.later_bytes > MOST_HELD_BYTES
        return is_ahead or self.size_bytes > MOST_HELD_BYTES

    @property
    def can_be_resumed(self) -> bool:
        """Whether what comes now has room, and is of the range that is being read."""
        is_wanted = self.fetched < self.end and self.size_bytes <= MOST_HELD_BYTES
        return self.is_paused and is_wanted

    @property
    def is_large(self) -> bool:
        """Whether enough is there to be handed out."""
        is_piece = self.rows >= RECORDS_PER_PIECE or self.size_bytes >= BYTES_PER_PIECE
        # Of a partition that was paused no more comes before this is handed out.
        return is_piece or self.size_bytes > MOST_HELD_BYTES

    def take(self) -> list[Chunk]:
        """Return the records before the end that came."""
        taken, self.chunks = self.chunks, []
        self.rows = self.size_bytes = 0
        self.handed = min(self.fetched, self.end)
        return taken
