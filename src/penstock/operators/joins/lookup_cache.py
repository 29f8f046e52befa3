"""Tables that are looked up, loaded once per process and version, and shared by all subtasks.

A version is the number of the reload interval that the epoch's processing time is in. This is
the driver's clock, and a second run of an epoch has the same time. So all subtasks of an epoch
agree on when a table is loaded again, and a process loads a version once.

A table that cannot be loaded fails the epoch, unless the process has an earlier version that
is not too old: this is used on, with a warning, and the next interval tries again.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from penstock.errors import PenstockError
from penstock.operators.joins.lookup_rows import LookupRows

_LOGGER = logging.getLogger(__name__)

MOST_STALE_INTERVALS = 3
"""For how many reload intervals an earlier version is used on while none can be loaded."""
MOST_TABLES = 8
"""How many tables a process keeps for operators that do not exist at the moment."""
MOST_BYTES = 1 << 30
"""How large these are together; the one that was asked for last is kept in any case."""


class _Slot:
    """The newest version of one table. Whoever needs another one loads it; others wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rows: LookupRows | None = None
        self._loaded: int = 0
        """The version of the rows."""
        self._tried: int | None = None
        """The version that was asked for last; the same as `_loaded` unless that failed."""

    @property
    def size_bytes(self) -> int:
        """How large the table is; 0 while it was never loaded."""
        rows = self._rows
        return 0 if rows is None else rows.size_bytes

    def get(self, version: int, load: Callable[[], LookupRows], name: str) -> LookupRows:
        """Return a version of the table, if need be an earlier one."""
        with self._lock:
            if self._rows is not None and self._tried == version:
                return self._rows
            try:
                rows = load()
            except PenstockError as error:
                age = version - self._loaded
                if self._rows is None or not 0 < age <= MOST_STALE_INTERVALS:
                    raise
                _LOGGER.warning(
                    "%s is used as it was loaded %d reload intervals ago, for at most %d: %s",
                    name,
                    age,
                    MOST_STALE_INTERVALS,
                    error.message,
                )
                rows = self._rows
            else:
                self._loaded = version
            self._rows, self._tried = rows, version
            return rows


class LookupCache:
    """The tables of a process by what they are loaded from. Threads may share it."""

    def __init__(self, most: int = MOST_TABLES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = Lock()
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()

    def get(
        self, source: Hashable, version: int, load: Callable[[], LookupRows], name: str
    ) -> LookupRows:
        """Return a version of a table; `load` loads it if the process does not have it.

        `name` is what a warning calls it. Of the tables that were not asked for of late only a
        few are kept; operators hold on to those that they use.
        """
        with self._lock:
            slot = self._slots.setdefault(source, _Slot())
            self._slots.move_to_end(source)
        rows = slot.get(version, load, name)
        with self._lock:
            while self._is_too_large():
                self._slots.popitem(last=False)
        return rows

    def _is_too_large(self) -> bool:
        sizes = [slot.size_bytes for slot in self._slots.values()]
        return len(sizes) > self._most or (len(sizes) > 1 and sum(sizes) > self._most_bytes)

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        """Forget all tables."""
        with self._lock:
            self._slots.clear()


TABLES = LookupCache()
"""The tables of this process."""
