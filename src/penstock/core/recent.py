"""Recent: values worth keeping while they are used again and again, and no longer.

A cache that is limited by number alone grows until it is full, hours into a run. This one
also forgets what was not used for some seconds, so its size follows the work. What is made
anew because it was forgotten is made anew at most every few seconds, which is cheap next
to the seconds that have passed.
"""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_SECONDS = 10.0


class Recent(Generic[K, V]):
    """Values of two turns, the current and the last; using a value takes it into the current.

    A turn ends after some seconds or when it holds `limit` values. Threads may share it
    without a lock: all that a race can do is to forget a value.
    """

    def __init__(
        self,
        limit: int,
        *,
        seconds: float = _SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._seconds = seconds
        self._now = now
        self._current: dict[K, V] = {}
        self._last: dict[K, V] = {}
        self._ends = now() + seconds

    def __len__(self) -> int:
        return len(self._current.keys() | self._last.keys())

    def get(self, key: K) -> V | None:
        """Return a value and note that it was used."""
        value = self._current.get(key)
        if value is None:
            value = self._last.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value."""
        now = self._now()
        if now >= self._ends or len(self._current) >= self._limit:
            self._last = self._current
            self._current = {}
            self._ends = now + self._seconds
        self._current[key] = value
        return value
