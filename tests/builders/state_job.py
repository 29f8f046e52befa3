"""A whole job in miniature: what a driver and its subtasks do with state, without a dataflow.

    job = StateJob({"agg": [specs…]}, store=store, parallelism=2)
    job.run_epoch(write)     write(operator, subtask, manager) is called for every subtask
    job.publish(job.run_subtasks(write)), job.commit(…)      the same, one step at a time
    job.start()              another process takes over; the old one's memory is gone

The order of storage calls is the protocol's: files, metadata, manifest, epoch record, fence,
sinks, marker. Whatever raises on the way leaves the store as a crash at that point would.

The executors' side of a miniature job: the tables of all subtasks, kept between epochs.

Compactions of a miniature job: results that wait for the epoch they are swapped in by.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.core.watermark import InputWatermark
from penstock.errors import CorruptStateError, FencedError
from penstock.state.checkpoints import JobCheckpoints, ParquetBackend
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ObjectRef,
    OperatorEntry,
    ProtocolRules,
)
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import Recovered, TakenOver
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import apply_compaction
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import CompactionConfig, Frontier, TableEnvironment
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from tests.builders.kept_epochs import Metadata, an_attempt, frontier_of, read_metadata
from tests.unit.state.tables.table_builders import NO_CACHE, compact_subtask

JOB = JobId("job")
Specs = Mapping[str, Sequence[TableSpec]]
Task = tuple[str, int]
Work = Mapping[Task, SubtaskCheckpoint]


class Subtasks:
    """All subtasks of all operators. Managers are lost with `forget`, else they catch up."""

    def __init__(self, job: JobId, store: ObjectStore, cache: FileCache) -> None:
        self._job = job
        self.managers: dict[Task, TableManager] = {}
        self._store = store
        self._cache = cache
        self._attempts = 0

    def forget(self, *, beyond: int = 0) -> None:
        """Lose the managers of subtasks from number `beyond` on."""
        self.managers = {t: m for t, m in self.managers.items() if t[1] < beyond}

    def open(
        self,
        specs: Specs,
        metadata: Mapping[str, Mapping[int, Metadata]],
        parallelism: int,
        generation: Generation,
        frontier: Frontier,
    ) -> dict[Task, TableManager]:
        """Begin an epoch: kept managers catch up, the others load."""
        for operator, tables in specs.items():
            restored = metadata.get(operator, {})
            for task in [(operator, index) for index in range(parallelism)]:
                attempt = self.attempt(task, parallelism, generation)
                if task in self.managers:
                    self.managers[task].catch_up(attempt, restored)
                else:
                    self.managers[task] = TableManager.load(attempt, tables, restored)
                self.managers[task].begin_epoch(frontier)
        return self.managers

    def checkpoint(self, epoch: Epoch, watermark: int | None) -> Work:
        """Write every subtask's state files; nothing is acknowledged yet."""
        return {
            task: manager.checkpoint(epoch, epoch, watermark)
            for task, manager in self.managers.items()
        }

    def attempt(
        self, task: Task, parallelism: int, generation: Generation
    ) -> TableEnvironment:
        """Return a new attempt of a subtask: what it writes meets no older attempt's files."""
        self._attempts += 1
        operator, index = task
        return an_attempt(
            self._store,
            TaskInfo(self._job, OperatorId(operator), Subtask(index, parallelism)),
            generation=generation,
            token=Token(f"{generation:08x}{self._attempts:024x}"),
            cache=self._cache,
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction, to be swapped in by epoch `due`."""

    operator: str
    tables: Mapping[str, state_pb2.TableCheckpointMetadata]
    due: int
    is_urgent: bool


class Compactions:
    """What was merged and waits. Known to the driver only: a new one starts without."""

    def __init__(self) -> None:
        self._waiting: list[Compacted] = []

    def run(
        self,
        operator: str,
        specs: Sequence[TableSpec],
        environment: TableEnvironment,
        config: CompactionConfig,
        metadata: Mapping[int, Metadata],
        *,
        due: int,
        is_urgent: bool = False,
    ) -> bool:
        """Merge what is due in one subtask; tell whether anything was."""
        done = compact_subtask(specs, environment, config, metadata)
        if done:
            self._waiting.append(Compacted(operator, done, due, is_urgent))
        return bool(done)

    def swap(
        self, metadata: dict[str, dict[int, Metadata]], epoch: Epoch, rules: ProtocolRules
    ) -> set[Task]:
        """Swap in what is due, urgent ones first; return the subtasks whose metadata changed."""
        swapped: set[Task] = set()
        due = [one for one in self._waiting if one.due == epoch]
        for one in sorted(due, key=lambda one: not one.is_urgent):
            parts = metadata[one.operator]
            changed = apply_compaction(parts, one.tables, epoch=epoch, rules=rules)
            parts.update(changed)
            swapped |= {(one.operator, index) for index in changed}
        return swapped


RULES = ProtocolRules(waypoint_stride=4, adoption_window=2)
"""Small, so that a handful of epochs leaves the adoption window."""
ONLY_TOO_MANY = 1_000_000
"""As `min_files`: merge only what exceeds the limit of runs."""

Committed = tuple[int, str, int, str, bytes]
"""One commit of a sink, a replay too: epoch, operator, subtask, table, data."""
Write = Callable[[str, Subtask, TableManager], None]


class StateJob:
    """One driver process at a time; `start` begins the next one."""

    def __init__(
        self,
        specs: Specs,
        *,
        store: ObjectStore | None = None,
        cache: FileCache = NO_CACHE,
        parallelism: int = 1,
        rules: ProtocolRules = RULES,
        job: JobId = JOB,
        sink: list[Committed] | None = None,
    ) -> None:
        self.job = job
        self.specs = specs
        self.store: ObjectStore = MemoryStore() if store is None else store
        self.cache = cache
        self.parallelism = parallelism
        self.clock = ManualClock()
        self.sink = [] if sink is None else sink
        self.subtasks = Subtasks(job, self.store, cache)
        self._rules = rules
        self.start()

    def start(
        self,
        *,
        restore: Epochs | None = None,
        specs: Specs | None = None,
        parallelism: int | None = None,
        keeps_views: bool = False,
    ) -> None:
        """Take the job over as a new driver: only the store, the sink and disks are left.

        With `keeps_views` the executors have survived, and with them the subtasks' tables.
        """
        self.specs = specs or self.specs
        self.parallelism = parallelism or self.parallelism
        self.subtasks.forget(beyond=self.parallelism if keeps_views else 0)
        self.checkpoints = JobCheckpoints(self.store, self.job, self.clock, self._rules)
        self.compactions = Compactions()
        self._restores = False
        plan = None if restore is None else self.checkpoints.plan_restore(restore).ref
        taken = self.checkpoints.take_over(restore=plan)
        while isinstance(taken, TakenOver) and isinstance(taken.decision, CommitPermit):
            unreplayable = self._replay(taken.decision, or_skip=plan is not None)
            taken = self.checkpoints.resume(taken.claim, unreplayable=unreplayable)
        if not isinstance(taken, TakenOver) or not isinstance(taken.decision, Recovered):
            raise FencedError("another driver owns the job")
        self.claim, self.epoch = taken.claim, taken.decision.next_epoch
        self.base, self.manifest = taken.decision.base, None
        self._restores = taken.decision.restore is not None
        if self.base is not None:
            self.manifest = self.checkpoints.manifest(self.base.ref)
        self.metadata = read_metadata(self.store, self.manifest)
        frontier = frontier_of(self.manifest)
        self.watermark = frontier.watermark_micros
        self.clock.micros = max(self.clock.micros, frontier.processing_time_micros)

    def run_epoch(
        self, write: Write | None = None, *, watermark: int | None = None
    ) -> None:
        """Run one whole epoch, its commit included."""
        permit = self.publish(self.run_subtasks(write, watermark=watermark))
        if permit is not None:
            self.commit(permit)

    def run_subtasks(
        self, write: Write | None = None, *, watermark: int | None = None
    ) -> Work:
        """Let every subtask open its tables, write, and checkpoint them."""
        for (operator, index), manager in self.open_subtasks().items():
            if write is not None:
                write(operator, Subtask(index, self.parallelism), manager)
        return self.checkpoint_subtasks(watermark)

    def open_subtasks(self) -> dict[Task, TableManager]:
        """Begin an epoch in every subtask."""
        self._wait_for_compaction()
        self.processing_time = self.clock.micros
        return self.subtasks.open(
            self.specs,
            self.metadata,
            self.parallelism,
            self.claim.generation,
            Frontier(self.watermark, self.processing_time),
        )

    def checkpoint_subtasks(self, watermark: int | None = None) -> Work:
        """Write every subtask's state files; nothing is acknowledged yet."""
        self.watermark = self.watermark if watermark is None else watermark
        return self.subtasks.checkpoint(self.epoch, self.watermark)

    def publish(self, work: Work) -> CommitPermit | None:
        """Write metadata and manifest and acknowledge the epoch; a permit if sinks must commit."""
        ref = CheckpointRef(self.job, self.claim.generation, self.epoch)
        metadata = {
            operator: {i: work[operator, i].metadata for i in range(self.parallelism)}
            for operator in self.specs
        }
        changed = {task for task, done in work.items() if done.changed}
        changed |= self.compactions.swap(metadata, self.epoch, self._rules)
        watermarks = (InputWatermark(self.watermark),)
        entries = tuple(
            OperatorEntry(
                OperatorId(name), self._write(ref, name, parts, changed), watermarks
            )
            for name, parts in metadata.items()
        )
        manifest = CheckpointManifest(
            ref=ref,
            parent=None if self.base is None else self.base.ref,
            created_at_micros=self.clock.micros,
            processing_time_micros=self.processing_time,
            needs_commit=any(done.metadata.commit_data for done in work.values()),
            operators=entries,
        )
        outcome = self.checkpoints.publish(self.claim, manifest, self.base)
        if not isinstance(outcome, ReadyCheckpoint | CommitPermit):
            raise FencedError(f"lost epoch {self.epoch}: {outcome}")
        self.manifest, self.metadata, self.epoch = manifest, metadata, self.epoch.next()
        if isinstance(outcome, CommitPermit):
            return outcome
        self.base = outcome
        self._release_restore()
        return None

    def commit(self, permit: CommitPermit) -> None:
        """Commit the sinks of an acknowledged epoch, then mark it committed."""
        self.commit_sinks(permit)
        self.base = self.checkpoints.complete_commit(permit)
        self._release_restore()

    def commit_sinks(self, permit: CommitPermit) -> None:
        """Hand the sinks what the epoch's metadata, and nothing else, holds for them."""
        for operator, parts in read_metadata(self.store, permit.manifest).items():
            for index, part in parts.items():
                for table, data in sorted(part.commit_data.items()):
                    self.sink.append((permit.ref.epoch, operator, index, table, data))

    def compact(
        self,
        operator: str,
        index: int,
        *,
        min_files: int = 2,
        target_bytes: int = 128 << 20,
        delay: int = 0,
    ) -> bool:
        """Merge a subtask's files; swapped in by the next epoch, or one `delay` epochs later."""
        if self.manifest is None:
            return False
        config = CompactionConfig(
            self.epoch,
            frontier_of(self.manifest),
            min_compaction_epochs=min_files,
            target_file_bytes=target_bytes,
        )
        return self.compactions.run(
            operator,
            self.specs[operator],
            self.attempt((operator, index)),
            config,
            self.metadata[operator],
            due=self.epoch + delay,
            is_urgent=min_files == ONLY_TOO_MANY,
        )

    def attempt(self, task: Task) -> TableEnvironment:
        """Return a new attempt of a subtask."""
        return self.subtasks.attempt(task, self.parallelism, self.claim.generation)

    def _replay(self, permit: CommitPermit, *, or_skip: bool) -> CheckpointRef | None:
        """Commit what a dead driver left open; a restore may pass over what is damaged."""
        try:
            self.commit(permit)
        except CorruptStateError:
            if not or_skip:
                raise
            return permit.ref
        return None

    def _write(
        self,
        ref: CheckpointRef,
        operator: str,
        parts: Mapping[int, Metadata],
        changed: Collection[Task],
    ) -> tuple[ObjectRef, ...]:
        """Write what changed; an unchanged subtask refers to its parent's object."""
        backend = ParquetBackend(self.store)
        entries = () if self.manifest is None else self.manifest.operators
        parents = {str(entry.operator): entry.subtasks for entry in entries}
        return tuple(
            backend.write_operator_checkpoint_metadata(ref, part)
            if (operator, index) in changed
            else parents[operator][index]
            for index, part in sorted(parts.items())
        )

    def _wait_for_compaction(self) -> None:
        """Merge wherever there are too many runs: an epoch must not start on top of them."""
        for operator in self.metadata:
            for index in range(self.parallelism):
                self.compact(operator, index, min_files=ONLY_TOO_MANY)

    def _release_restore(self) -> None:
        """Let go of what a restore started from, once an epoch is built on it."""
        if self._restores:
            self.checkpoints.release_honoured_restores(self.claim)
            self._restores = False
