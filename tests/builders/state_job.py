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
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.errors import FencedError
from penstock.state.checkpoints.backend import ParquetBackend
from penstock.state.checkpoints.job_checkpoints import JobCheckpoints
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.protocol.pinning import Epochs
from penstock.state.protocol.publication import CommitPermit, CommitRequired, Published
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    InputWatermark,
    ObjectRef,
    OperatorEntry,
)
from penstock.state.protocol.recovery import Recovered, ReplayCommit
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.takeover import TakenOver
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import apply_compaction, compact_subtask
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import CompactionConfig, Frontier, TableEnvironment
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from tests.builders.kept_epochs import (
    Metadata,
    an_attempt,
    frontier_of,
    read_metadata,
)
from tests.unit.state.tables.table_builders import NO_CACHE

JOB = JobId("job")
RULES = ProtocolRules(waypoint_stride=4, adoption_window=2)
"""Small, so that a handful of epochs leaves the adoption window."""
ONLY_TOO_MANY = 1_000_000
"""As `min_files`: merge only what exceeds the limit of runs."""

Specs = Mapping[str, Sequence[TableSpec]]
Task = tuple[str, int]
Committed = tuple[int, str, int, str, bytes]
"""One commit of a sink, a replay too: epoch, operator, subtask, table, data."""
Work = Mapping[Task, SubtaskCheckpoint]
Write = Callable[[str, Subtask, TableManager], None]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction, to be swapped in by epoch `due`."""

    operator: str
    tables: Mapping[str, state_pb2.TableCheckpointMetadata]
    due: int


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
        sink: list[Committed] | None = None,
    ) -> None:
        self.specs = specs
        self.store: ObjectStore = MemoryStore() if store is None else store
        self.cache = cache
        self.parallelism = parallelism
        self.clock = ManualClock()
        self.sink = [] if sink is None else sink
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
        kept = self.managers if keeps_views else {}
        self.managers: dict[Task, TableManager] = {
            task: manager for task, manager in kept.items() if task[1] < self.parallelism
        }
        self.checkpoints = JobCheckpoints(self.store, JOB, self.clock, self._rules)
        self.compacted: list[Compacted] = []
        self._restores = False
        plan = None if restore is None else self.checkpoints.plan_restore(restore).ref
        taken = self.checkpoints.take_over(restore=plan)
        while isinstance(taken, TakenOver) and isinstance(taken.decision, ReplayCommit):
            self.commit(taken.decision.permit)
            taken = self.checkpoints.resume(taken.claim)
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
        """Begin an epoch: kept managers catch up, the others load."""
        self._wait_for_compaction()
        self.processing_time = self.clock.micros
        frontier = Frontier(self.watermark, self.processing_time)
        for operator, specs in self.specs.items():
            restored = self.metadata.get(operator, {})
            for task in [(operator, index) for index in range(self.parallelism)]:
                if task in self.managers:
                    self.managers[task].catch_up(self.attempt(task), restored)
                else:
                    self.managers[task] = TableManager.load(
                        self.attempt(task), specs, restored
                    )
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
        ref = CheckpointRef(JOB, self.claim.generation, self.epoch)
        metadata = {
            operator: {i: work[operator, i].metadata for i in range(self.parallelism)}
            for operator in self.specs
        }
        changed = {task for task, done in work.items() if done.changed} | self._swap(
            metadata
        )
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
        if not isinstance(outcome, Published | CommitRequired):
            raise FencedError(f"lost epoch {self.epoch}: {outcome}")
        self.manifest, self.metadata, self.epoch = manifest, metadata, self.epoch.next()
        if isinstance(outcome, CommitRequired):
            return outcome.permit
        self.base = outcome.ready
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
            self.attempt((operator, index)),
            self.manifest.ref.epoch.next(),
            frontier_of(self.manifest),
            min_compaction_epochs=min_files,
            target_file_bytes=target_bytes,
        )
        done = compact_subtask(self.specs[operator], config, self.metadata[operator])
        if done:
            self.compacted.append(Compacted(operator, done, self.epoch + delay))
        return bool(done)

    def attempt(self, task: Task) -> TableEnvironment:
        """Return a new attempt of a subtask: what it writes meets no older attempt's files."""
        self._attempts += 1
        operator, index = task
        return an_attempt(
            self.store,
            TaskInfo(JOB, OperatorId(operator), Subtask(index, self.parallelism)),
            generation=self.claim.generation,
            token=Token(f"{self.claim.generation:08x}{self._attempts:024x}"),
            cache=self.cache,
        )

    def _swap(self, metadata: dict[str, dict[int, Metadata]]) -> set[Task]:
        """Swap in what is due; return the subtasks whose metadata that changed."""
        swapped: set[Task] = set()
        for one in self.compacted:
            if one.due == self.epoch:
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

    def _wait_for_compaction(self) -> None:
        """Merge wherever there are too many runs: an epoch must not start on top of them."""
        waiting, self.compacted = self.compacted, []
        for operator in self.metadata:
            for index in range(self.parallelism):
                self.compact(operator, index, min_files=ONLY_TOO_MANY)
        self.compacted += waiting

    def _release_restore(self) -> None:
        """Let go of what a restore started from, once an epoch is built on it."""
        if self._restores:
            self.checkpoints.release_honoured_restores(self.claim)
            self._restores = False
