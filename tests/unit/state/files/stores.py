"""Stores that misbehave once, for tests of single calls."""

from collections.abc import Callable

from penstock.errors import UnknownOutcomeError
from penstock.state.storage.memory import MemoryStore


class CountingStore(MemoryStore):
    """Remembers every read, so that tests can say how many requests a read costs."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int | None, int | None]] = []

    def read(self, path: str) -> bytes | None:
        self.reads.append((path, None, None))
        return super().read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        self.reads.append((path, start, length))
        return super().read_range(path, start, length)


class LostAnswerStore(MemoryStore):
    """Loses the answer of the first creates; `lands` says whether each was carried out."""

    __slots__ = ("_change", "_lands", "creates")

    def __init__(
        self, lands: list[bool], change: Callable[[bytes], bytes] = lambda data: data
    ) -> None:
        super().__init__()
        self._lands = lands
        self._change = change
        self.creates = 0

    def create(self, path: str, data: bytes) -> bool:
        self.creates += 1
        if not self._lands:
            return super().create(path, data)
        if self._lands.pop(0):
            super().create(path, self._change(data))
        raise UnknownOutcomeError("the answer was lost", path=path)
