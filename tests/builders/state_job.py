"""A whole job in miniature: what a driver and its subtasks do with state, without a dataflow.

    job = StateJob({"agg": [specs…]}, store=store, parallelism=2)
    job.run_epoch(write)     write(operator, subtask, manager) is called for every subtask
    job.publish(job.run_subtasks(write)), job.commit(…)      the same, one step at a time
    job.start()              another process takes over; the old one's memory is gone

The order of storage calls is the protocol's: files, metadata, manifest, epoch record, fence,
sinks, marker. Whatever raises on the way leaves the store as a crash at that point would.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.core.watermark import InputWatermark
from penstock.errors import FencedError
from penstock.state.checkpoints import JobCheckpoints, ParquetBackend
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    ObjectRef,
    OperatorEntry,
    ProtocolRules,
)
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import apply_compaction
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import CompactionConfig, Frontier, TableEnvironment
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from tests.builders.kept_epochs import Metadata, an_attempt, frontier_of, read_metadata
from tests.builders.protocol import JOB, RULES
from tests.builders.small_driver import Sink, SmallDriver
from tests.unit.state.tables.table_builders import NO_CACHE, compact_subtask

Specs = Mapping[str, Sequence[TableSpec]]
Task = tuple[str, int]
Work = Mapping[Task, SubtaskCheckpoint]
Committed = tuple[int, str, int, str, bytes]
"""One commit of a sink, a replay too: epoch, operator, subtask, table, data."""
Write = Callable[[str, Subtask, TableManager], None]
ONLY_TOO_MANY = 1_000_000
"""As `min_files`: merge only what exceeds the limit of runs."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction, to be swapped in by epoch `due`."""

    operator: str
    tables: Mapping[str, state_pb2.TableCheckpointMetadata]
    due: int
    is_urgent: bool


class TableSink(Sink):
    """Takes what the metadata of an epoch, and nothing else, holds for sinks."""

    def __init__(self, store: ObjectStore, taken: list[Committed]) -> None:
        super().__init__()
        self._store = store
        self._taken = taken

    def commit(self, permit: CommitPermit) -> None:
        for operator, parts in read_metadata(self._store, permit.manifest).items():
            for index, part in parts.items():
                for table, data in sorted(part.commit_data.items()):
                    self._taken.append((permit.ref.epoch, operator, index, table, data))


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
        self.managers: dict[Task, TableManager] = {}
        """The tables of every subtask, kept between epochs."""
        self._rules = rules
        self._attempts = 0
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
        kept = self.parallelism if keeps_views else 0
        self.managers = {t: m for t, m in self.managers.items() if t[1] < kept}
        # Known to the driver only: a new one starts without.
        self._compacted: list[Compacted] = []
        self.checkpoints = JobCheckpoints(self.store, self.job, self.clock, self._rules)
        plan = None if restore is None else self.checkpoints.plan_restore(restore).ref
        driver = SmallDriver(self.checkpoints, TableSink(self.store, self.sink))
        self._driver = driver.start(restore=plan)
        base = driver.base
        self.manifest = None if base is None else self.checkpoints.manifest(base.ref)
        self.metadata = read_metadata(self.store, self.manifest)
        frontier = frontier_of(self.manifest)
        self.watermark = frontier.watermark_micros
        self.clock.micros = max(self.clock.micros, frontier.processing_time_micros)

    @property
    def claim(self) -> ClaimRecord:
        return self._driver.claim

    @property
    def base(self) -> ReadyCheckpoint | None:
        return self._driver.base

    @property
    def epoch(self) -> Epoch:
        """The next one to publish."""
        return self._driver.next_epoch

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
        """Begin an epoch in every subtask: kept managers catch up, the others load."""
        for operator in self.metadata:
            for index in range(self.parallelism):
                # An epoch must not start on top of too many runs.
                self.compact(operator, index, min_files=ONLY_TOO_MANY)
        self.processing_time = self.clock.micros
        for operator, tables in self.specs.items():
            restored = self.metadata.get(operator, {})
            for task in [(operator, index) for index in range(self.parallelism)]:
                attempt = self.attempt(task)
                if task in self.managers:
                    self.managers[task].catch_up(attempt, restored)
                else:
                    self.managers[task] = TableManager.load(attempt, tables, restored)
                frontier = Frontier(self.watermark, self.processing_time)
                self.managers[task].begin_epoch(frontier)
        return self.managers

    def checkpoint_subtasks(self, watermark: int | None = None) -> Work:
        """Write every subtask's state files; nothing is acknowledged yet."""
        self.watermark = self.watermark if watermark is None else watermark
        return {
            task: manager.checkpoint(self.epoch, self.epoch, self.watermark)
            for task, manager in self.managers.items()
        }

    def publish(self, work: Work) -> CommitPermit | None:
        """Write metadata and manifest and acknowledge the epoch; a permit if sinks must commit."""
        ref = CheckpointRef(self.job, self.claim.generation, self.epoch)
        metadata = {
            operator: {i: work[operator, i].metadata for i in range(self.parallelism)}
            for operator in self.specs
        }
        changed = {task for task, done in work.items() if done.changed}
        changed |= self._swap_compacted(metadata)
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
        outcome = self._driver.publish(manifest)
        if not isinstance(outcome, ReadyCheckpoint | CommitPermit):
            raise FencedError(f"lost epoch {self.epoch}: {outcome}")
        self.manifest, self.metadata = manifest, metadata
        if isinstance(outcome, CommitPermit):
            return outcome
        self._driver.finish(outcome)
        return None

    def commit(self, permit: CommitPermit) -> None:
        """Commit the sinks of an acknowledged epoch, then mark it committed."""
        self._driver.finish(permit)

    def commit_sinks(self, permit: CommitPermit) -> None:
        """Commit the sinks, and die before the mark."""
        self._driver.sink.commit(permit)

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
        attempt, parts = self.attempt((operator, index)), self.metadata[operator]
        done = compact_subtask(self.specs[operator], attempt, config, parts)
        if done:
            is_urgent = min_files == ONLY_TOO_MANY
            self._compacted.append(Compacted(operator, done, self.epoch + delay, is_urgent))
        return bool(done)

    def attempt(self, task: Task) -> TableEnvironment:
        """Return a new attempt of a subtask: what it writes meets no older attempt's files."""
        self._attempts += 1
        operator, index = task
        generation = self.claim.generation
        return an_attempt(
            self.store,
            TaskInfo(self.job, OperatorId(operator), Subtask(index, self.parallelism)),
            generation=generation,
            token=Token(f"{generation:08x}{self._attempts:024x}"),
            cache=self.cache,
        )

    def _swap_compacted(self, metadata: Mapping[str, dict[int, Metadata]]) -> set[Task]:
        """Swap in what is due, urgent ones first; return the subtasks whose metadata changed."""
        swapped: set[Task] = set()
        due = [one for one in self._compacted if one.due == self.epoch]
        for one in sorted(due, key=lambda one: not one.is_urgent):
            parts = metadata[one.operator]
            changed = apply_compaction(
                parts, one.tables, epoch=self.epoch, rules=self._rules
            )
            parts.update(changed)
            swapped |= {(one.operator, index) for index in changed}
        return swapped

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
