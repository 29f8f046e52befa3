"""All subtasks of one operator with timers, driven by hand as a chain loop would drive them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.ids import Epoch
from penstock.core.key_hash import hash_keys, owners_of
from penstock.core.schema import StreamSchema
from penstock.operators.timers import Timers, timer_tables
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.operator_tables import apply_compaction
from penstock.state.tables.specs import TimeDomain
from penstock.state.tables.table import CompactionConfig, Frontier
from penstock.state.tables.table_manager import TableManager
from tests.unit.state.tables.table_builders import an_environment, compact_subtask

_COLUMNS: dict[str, Any] = {"user": pa.string(), "n": pa.int64()}
INPUT = StreamSchema(pa.schema(_COLUMNS), key_columns=("user",))
Timer = tuple[str | None, int]
Metadata = dict[int, state_pb2.OperatorCheckpointMetadata]
Use = Callable[["Handle"], None]


def keys(*users: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"user": pa.array(users, pa.string())})


class Handle:
    """The timers of one subtask; takes those of its own keys only, as rows would reach it."""

    def __init__(self, timers: Timers, index: int, parallelism: int) -> None:
        self.timers = timers
        self.index = index
        self._parallelism = parallelism

    def set(self, *timers: Timer) -> None:
        self._call(self.timers.set, timers)

    def cancel(self, *timers: Timer) -> None:
        self._call(self.timers.cancel, timers)

    def _call(self, method: Callable[..., None], timers: Sequence[Timer]) -> None:
        own = [timer for timer in timers if self.owns(timer[0])]
        batch = keys(*(user for user, _ in own))
        method(batch, pa.array([due for _, due in own], pa.int64()))

    def owns(self, user: str | None) -> bool:
        hashes = hash_keys([pa.array([user], pa.string())])
        return int(owners_of(hashes, self._parallelism)[0]) == self.index


@dataclass(frozen=True, slots=True)
class Published:
    """What a manifest would hold."""

    metadata: Metadata
    clock: int | None


class TimerCluster:
    """Runs epochs at any parallelism, warm or cold, torn or published."""

    def __init__(self, domain: TimeDomain, parallelism: int = 1) -> None:
        self.domain = domain
        self.parallelism = parallelism
        self.store = MemoryStore()
        self.specs = timer_tables([domain], INPUT)
        self.published = [Published({}, None)]
        self._next_due: int | None = None
        self._has_fired = False
        self.bytes_written = 0
        self._managers: dict[int, TableManager] = {}
        self._attempts = 0
        self._epoch = 0

    @property
    def clock(self) -> int | None:
        return self.published[-1].clock

    def run_epoch(
        self,
        now: int | None,
        write: Use | None = None,
        *,
        on_fire: Callable[[Handle, list[Timer]], None] | None = None,
        at_end: Use | None = None,
        warm: bool = False,
        is_torn: bool = False,
    ) -> list[Timer]:
        """Run all subtasks; return what fired, each subtask's in its order."""
        self._epoch += 1
        fired: list[Timer] = []
        metadata: Metadata = {}
        next_due: list[int | None] = []
        self._has_fired, self.bytes_written = False, 0
        for index in range(self.parallelism):
            manager = self._open(index, now, warm=warm)
            timers = Timers(self.domain, manager, INPUT)
            timers.begin_epoch(self.clock)
            handle = Handle(timers, index, self.parallelism)
            if write is not None:
                write(handle)
            fired += self._fire(handle, now, on_fire)
            if at_end is not None:
                at_end(handle)
            watermark = now if self.domain is TimeDomain.EVENT_TIME else None
            done = manager.checkpoint(Epoch(self._epoch), Epoch(1), watermark)
            metadata[index] = done.metadata
            self.bytes_written += done.bytes_written
            next_due.append(timers.next_due_micros())
            self._has_fired |= timers.has_fired
        self._next_due = min((due for due in next_due if due is not None), default=None)
        if not is_torn:
            self.published.append(Published(metadata, now))
        return fired

    def has_fired(self) -> bool:
        """Tell whether anything fired in the last epoch."""
        return self._has_fired

    def next_due(self) -> int | None:
        """Return when the next timer is due, as the last epoch reported it."""
        return self._next_due

    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self._managers = {}

    def restore(self, back: int) -> None:
        """Go on from an older epoch; subtasks may have survived, with their views."""
        self.published = self.published[: max(1, len(self.published) - back)]

    def compact(self) -> int:
        """Merge files of every subtask and swap them in; return how many tables were merged."""
        metadata, clock = self.published[-1].metadata, self.clock
        if len(metadata) != self.parallelism:
            return 0
        merged = 0
        for index in metadata:
            config = CompactionConfig(
                Epoch(self._epoch + 1),
                Frontier(clock, 0) if self._is_event_time else Frontier(None, clock or 0),
                min_compaction_epochs=2,
            )
            done = compact_subtask(self.specs, self._environment(index), config, metadata)
            merged += len(done)
            metadata |= apply_compaction(metadata, done, epoch=Epoch(self._epoch + 1))
        return merged

    @property
    def _is_event_time(self) -> bool:
        return self.domain is TimeDomain.EVENT_TIME

    def _environment(self, index: int) -> Any:
        self._attempts += 1
        return an_environment(
            self.store, index=index, parallelism=self.parallelism, attempt=self._attempts
        )

    def _open(self, index: int, now: int | None, *, warm: bool) -> TableManager:
        environment, metadata = self._environment(index), self.published[-1].metadata
        manager = self._managers.get(index) if warm else None
        if manager is None:
            manager = TableManager.load(environment, self.specs, metadata)
        else:
            manager.catch_up(environment, metadata)
        self._managers[index] = manager
        if self._is_event_time:
            manager.begin_epoch(Frontier(self.clock, 0))
        else:
            manager.begin_epoch(Frontier(None, now or 0, self.clock))
        return manager

    def _fire(
        self,
        handle: Handle,
        now: int | None,
        on_fire: Callable[[Handle, list[Timer]], None] | None,
    ) -> list[Timer]:
        fired: list[Timer] = []
        while (due := handle.timers.take_due(now)) is not None:
            users: list[Any] = due.keys.column("user").to_pylist()
            instants: list[Any] = due.due_micros.to_pylist()
            batch = list(zip(users, instants, strict=True))
            fired += batch
            if on_fire is not None:
                on_fire(handle, batch)
        return fired
