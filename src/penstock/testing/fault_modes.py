"""What can go wrong with a storage call, and at which call it does.

| mode                | the call is carried out      | the caller sees               |
|---------------------|------------------------------|-------------------------------|
| FAIL_BEFORE         | no                           | StorageError                  |
| FAIL_AFTER          | yes                          | UnknownOutcomeError           |
| LOSE_RESPONSE       | as `lands` says              | UnknownOutcomeError           |
| DELAY               | yes, after `hook` returned   | the answer                    |
| STALE_LIST          | on the objects of call `as_of` | an old listing              |
| STALE_READ          | on the objects of call `as_of` | an old object, or its absence |
| IGNORE_PRECONDITION | `create` overwrites          | True                          |
| CRASH_BEFORE        | no                           | CrashError, now and for ever  |
| CRASH_AFTER         | yes                          | CrashError, now and for ever  |

A read that fails changes nothing, so it raises `StorageError` in every failing mode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple


class FaultMode(StrEnum):
    """What goes wrong; the module's table says how."""

    FAIL_BEFORE = "fail-before"
    FAIL_AFTER = "fail-after"
    LOSE_RESPONSE = "lose-response"
    DELAY = "delay"
    STALE_LIST = "stale-list"
    STALE_READ = "stale-read"
    IGNORE_PRECONDITION = "ignore-precondition"
    CRASH_BEFORE = "crash-before"
    CRASH_AFTER = "crash-after"


class Lands(Enum):
    """When a write whose response is lost reaches the store."""

    NEVER = "never"
    NOW = "now"
    LATER = "later"


_SUFFERED_BY = {
    FaultMode.STALE_LIST: frozenset({"list"}),
    FaultMode.STALE_READ: frozenset({"read", "read_range", "size", "checksum"}),
    FaultMode.IGNORE_PRECONDITION: frozenset({"create"}),
}
"""The modes that only some operations can suffer."""


class Call(NamedTuple):
    """One call of the store, as the log keeps it."""

    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, at one call or at all that match."""

    mode: FaultMode
    at: int | None = 1
    """Which of the matching calls suffers, counted from 1; None is every one."""
    operation: str | None = None
    """Only calls of this method match, such as `create`."""
    path: str | None = None
    """Only calls on such a path match, as in `*/epochs/*`; a `*` also spans `/`."""
    lands: Lands = Lands.NEVER
    """For LOSE_RESPONSE. A write that lands later does so in `deliver_late`."""
    late_calls: int | None = None
    """For `Lands.LATER`: it lands by itself right before that many calls later."""
    as_of: int = 0
    """For STALE_*: after how many calls the store looked like this; 0 is when it was wrapped."""
    hook: Callable[[Call], None] | None = field(default=None, compare=False)
    """For DELAY: runs while the request is under way; other actors' steps go in here."""
    when: Callable[[Call], bool] | None = field(default=None, compare=False)
    """Asked last, whether such a call suffers: processes that share a store each count anew."""

    def matches(self, call: Call) -> bool:
        """Tell whether the call is one this fault counts."""
        operations = _SUFFERED_BY.get(self.mode)
        return (
            (operations is None or call.operation in operations)
            and (self.operation is None or call.operation == self.operation)
            and (self.path is None or fnmatchcase(call.path, self.path))
        )


STORAGE_FAULTS = (
    Fault(FaultMode.FAIL_BEFORE),
    Fault(FaultMode.FAIL_AFTER),
    Fault(FaultMode.LOSE_RESPONSE, lands=Lands.NEVER),
    Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER, late_calls=1),
    Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER),
    Fault(FaultMode.STALE_LIST),
    Fault(FaultMode.CRASH_BEFORE),
    Fault(FaultMode.CRASH_AFTER),
)
"""All a store that keeps its contract may do to a caller: what correct code survives."""
