"""FaultyStore, which fails on purpose at chosen calls, and sweeps that fail at every call.

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

A sweep runs a workflow many times: once for each fault at each storage call that it makes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from itertools import count
from math import inf
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from penstock.errors import PenstockError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore, StorageCall
from penstock.state.storage.watched import ForwardingStore


class FaultMode(StrEnum):
    """What goes wrong; the table of the module describes each mode."""

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
"""The operations that a mode applies to; other modes apply to all."""


class Call(NamedTuple):
    """One call of the store, as the log keeps it."""

    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, at one call or at all that match."""

    mode: FaultMode
    at: int | None = 1
    """The number of the matching call that fails, from 1; None for every one."""
    operation: str | None = None
    """Only calls of this method match, such as `create`."""
    path: str | None = None
    """Only calls on such a path match, as in `*/epochs/*`; a `*` also spans `/`."""
    lands: Lands = Lands.NEVER
    """For LOSE_RESPONSE: when the write lands. A later write lands in `deliver_late`."""
    late_calls: int | None = None
    """For `Lands.LATER`: after how many further calls it lands by itself, before the next."""
    as_of: int = 0
    """For STALE_*: the number of calls after which the old state was taken; 0 for the start."""
    hook: Callable[[Call], None] | None = field(default=None, compare=False)
    """For DELAY: called while the request is under way, to run steps of other processes."""
    when: Callable[[Call], bool] | None = field(default=None, compare=False)
    """A last condition for a call to fail, so that processes that share a store count apart."""

    def matches(self, call: Call) -> bool:
        """Return whether this fault counts the call."""
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
"""All that a store may do within its contract. Correct code survives each of them."""

_Answer = TypeVar("_Answer")
_Act: TypeAlias = Callable[[ObjectStore], _Answer]

_WRITES = frozenset({"put", "create", "delete", "copy"})


class CrashError(BaseException):
    """The process is dead: no `except Exception` of the code under test may catch this."""


class _Careless(ForwardingStore):
    """A store that does not check the precondition of `create`."""

    @override
    def create(self, path: str, data: bytes) -> bool:
        self.store.put(path, data)
        return True


class FaultyStore(ForwardingStore):
    """An `ObjectStore` over another one, with the given faults and a log of every call.

    >>> from penstock.state.storage.memory import MemoryStore
    >>> inner = MemoryStore()
    >>> store = FaultyStore(inner, Fault(FaultMode.FAIL_AFTER, at=2, operation="create"))
    >>> store.create("a", b"1")
    True
    >>> store.create("b", b"2")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    penstock.errors.UnknownOutcomeError: no certain answer to create 'b' in memory:: ...
    >>> inner.read("b")  # it had landed all the same
    b'2'
    >>> store.calls
    [Call(operation='create', path='a'), Call(operation='create', path='b')]
    """

    def __init__(self, store: ObjectStore, *faults: Fault) -> None:
        super().__init__(store)
        self._faults = faults
        self._met = [0] * len(faults)
        self.has_fired = False
        """Whether any fault has struck."""
        self._log: list[Call] = []
        self._late: list[tuple[float, _Act[object]]] = []
        """Writes that have not landed, each with the number of the call before which it does."""
        stale = {FaultMode.STALE_LIST, FaultMode.STALE_READ}
        self._wanted = {fault.as_of for fault in faults if fault.mode in stale}
        self._old: dict[int, ObjectStore] = {}
        self._dead = False
        self._lock = Lock()
        self._remember(0)

    @property
    def calls(self) -> list[Call]:
        """Every call so far, in order, also those that failed."""
        return self._log.copy()

    def deliver_late(self) -> None:
        """Let every write that has not landed land, in the order they were made.

        This works after a crash too: the request of a dead process may still be in the network.
        """
        with self._lock:
            self._land(inf)

    def __repr__(self) -> str:
        return f"FaultyStore({self.store!r}, {len(self._faults)} faults)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes a copy in another process, with the same faults and an empty log."""
        return FaultyStore, (self.store, *self._faults)

    @override
    def _forward(self, operation: str, path: str, act: _Act[_Answer]) -> _Answer:
        """Do `act` as the faults allow."""
        call = Call(operation, path)
        struck: Fault | None = None
        for fault in self._enter(call):
            if fault.mode is not FaultMode.DELAY:
                struck = struck or fault
            elif fault.hook is not None:
                fault.hook(call)
        return act(self.store) if struck is None else self._suffer(struck, call, act)

    def _enter(self, call: Call) -> Sequence[Fault]:
        """Log the call, let late writes land that are due, and return the call's faults."""
        with self._lock:
            if self._dead:
                raise CrashError(f"{call.operation} {call.path!r} after the crash")
            self._remember(len(self._log))
            self._log.append(call)
            self._land(len(self._log))
            met = []
            for index, fault in enumerate(self._faults):
                if fault.matches(call):
                    self._met[index] += 1
                    is_chosen = fault.at is None or fault.at == self._met[index]
                    if is_chosen and (fault.when is None or fault.when(call)):
                        met.append(fault)
            self.has_fired = self.has_fired or bool(met)
            return met

    def _land(self, number: float) -> None:
        """Let the late writes land that are due before the call of this number."""
        due = [act for lands_at, act in self._late if lands_at <= number]
        self._late = [late for late in self._late if late[0] > number]
        for act in due:
            act(self.store)

    def _suffer(self, fault: Fault, call: Call, act: _Act[_Answer]) -> _Answer:
        is_write = call.operation in _WRITES
        match fault.mode:
            case FaultMode.IGNORE_PRECONDITION:
                return act(_Careless(self.store))
            case FaultMode.STALE_LIST | FaultMode.STALE_READ:
                return act(self._old.get(fault.as_of, self.store))
            case FaultMode.CRASH_BEFORE | FaultMode.CRASH_AFTER:
                if fault.mode is FaultMode.CRASH_AFTER:
                    act(self.store)
                with self._lock:
                    self._dead = True
                raise CrashError(f"{fault.mode} {call.operation} {call.path!r}")
            case FaultMode.FAIL_AFTER:
                act(self.store)
            case FaultMode.LOSE_RESPONSE if fault.lands is Lands.NOW:
                act(self.store)
            case FaultMode.LOSE_RESPONSE if fault.lands is Lands.LATER and is_write:
                calls = inf if fault.late_calls is None else fault.late_calls
                with self._lock:
                    self._late.append((len(self._log) + calls, act))
            case _:
                # The request never reaches the store.
                pass
        about = StorageCall(call.operation, call.path, self.url)
        reason = f"injected fault {fault.mode}"
        if is_write and fault.mode is not FaultMode.FAIL_BEFORE:
            raise about.unanswered(reason)
        raise about.refused(reason)

    def _remember(self, number: int) -> None:
        """Copy the store if a fault needs its state after this many calls."""
        if number in self._wanted and number not in self._old:
            self._old[number] = MemoryStore(stored_objects(self.store))


def stored_objects(store: ObjectStore) -> dict[str, bytes]:
    """Return every object of a store by path."""
    found = ((info.path, store.read(info.path)) for info in store.list(""))
    return {path: data for path, data in found if data is not None}


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the workflow with one fault."""

    fault: Fault
    store: FaultyStore
    """The store that the workflow used, with its log; `store.store` holds what it wrote."""
    result: object
    """What the workflow returned; None if it raised."""
    error: PenstockError | CrashError | None


def sweep(
    run: Callable[[FaultyStore], object],
    faults: Iterable[Fault] = STORAGE_FAULTS,
    *,
    make_store: Callable[[], ObjectStore] = MemoryStore,
) -> Iterator[Trial]:
    """Run the workflow with each fault at its first matching call, its second, … its last.

    Every trial starts from a new `make_store()`. It may end by itself, with an error of
    Penstock's, or with a crash; any other exception is a bug, and the sweep raises it. The
    caller then checks what `trial.store.store` holds, or recovers from it.

    >>> def workflow(store):
    ...     store.create("data", b"1")
    ...     store.create("pointer-to-data", b"data")
    >>> trials = list(sweep(workflow))
    >>> len(trials)
    14
    >>> all(
    ...     trial.store.store.read("data") or not trial.store.store.read("pointer-to-data")
    ...     for trial in trials
    ... )
    True
    """
    for fault in faults:
        for at in count(1):
            chosen = replace(fault, at=at)
            store = FaultyStore(make_store(), chosen)
            try:
                trial = Trial(chosen, store, run(store), None)
            except (PenstockError, CrashError) as error:
                trial = Trial(chosen, store, None, error)
            if not store.has_fired:
                break
            yield trial
