"""The worker: what a process that runs tasks keeps between them.

A task *takes* its chain out of the worker before the first change and puts it back only
after its checkpoint, with the number of the run and the metadata it wrote. So whatever is
found here is whole, and the label shows whether the driver accepted it:

| label | tables | operators |
|---|---|---|
| of the accepted run, same files | go on | go on |
| of an older run | read what is new | are built again |
| anything else | are folded again | are built again |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.core.clock import Clock, SystemClock
from penstock.core.ids import JobId, OperatorId
from penstock.errors import PenstockError
from penstock.operators.chain import AssembledChain
from penstock.operators.registry import Registry
from penstock.state.checkpoints import JobCheckpoints, Metadata, ParquetBackend
from penstock.state.files.cache import FileCache, Recent
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef, ObjectRef
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.watched import StoreUsage, WatchedStore


@dataclass(frozen=True, slots=True)
class ChainKey:
    """Which chain of which subtask of which job; a new generation or graph has chains of its own."""

    job: JobId
    generation: int
    fingerprint: str
    chain: int
    subtask: int


@dataclass(slots=True)
class KeptChain:
    """A chain between two epochs, and what it had written when it was put back."""

    chain: AssembledChain
    run: int
    written: Mapping[OperatorId, Metadata]


@dataclass(slots=True)
class Worker:
    """One process that runs tasks. Opened after the process was forked."""

    store: ObjectStore
    cache: FileCache
    registry: Registry
    clock: Clock = field(default_factory=SystemClock)
    memory_budget_bytes: int = 256 << 20
    on_failure: Callable[[PenstockError], None] = field(default=lambda _: None)
    """Called with the error of a task before it is reported, which drops its cause."""
    chains: dict[ChainKey, KeptChain] = field(default_factory=dict)
    manifests: Recent[CheckpointRef, CheckpointManifest] = field(
        default_factory=lambda: Recent(8)
    )
    metadata: Recent[ObjectRef, Metadata] = field(default_factory=lambda: Recent(4096))
    watched: WatchedStore = field(init=False)
    """The store as tables see it."""
    _records: WatchedStore = field(init=False)
    """The store as checkpoints are read from it; watched for the sake of counting."""

    def __post_init__(self) -> None:
        self.watched = WatchedStore(self.store)
        self._records = WatchedStore(self.store)

    @property
    def usage(self) -> StoreUsage:
        """What was asked of store and cache since the worker was made."""
        cached = self.cache.statistics()
        requests = self.watched.requests + self._records.requests
        return StoreUsage(requests, cached.hits, cached.misses)

    def take_chain(self, key: ChainKey) -> KeptChain | None:
        """Take a chain out, so that only the task that changes it can find it."""
        return self.chains.pop(key, None)

    def keep_chain(self, key: ChainKey, kept: KeptChain) -> None:
        """Put a chain back after its checkpoint; chains of earlier generations go."""
        stale = [
            other
            for other in self.chains
            if other.job == key.job
            and (other.generation, other.fingerprint) != (key.generation, key.fingerprint)
        ]
        for other in stale:
            self.chains.pop(other).chain.close()
        self.chains[key] = kept

    def manifest(self, ref: CheckpointRef) -> CheckpointManifest:
        """Return a manifest, read once while it is in use."""
        found = self.manifests.get(ref)
        if found is None:
            found = JobCheckpoints(self._records, ref.job, self.clock).manifest(ref)
            self.manifests.put(ref, found)
        return found

    def operator_metadata(
        self, manifest: CheckpointManifest | None, operator: OperatorId
    ) -> dict[int, Metadata]:
        """Return the metadata of all subtasks of an operator, read once while in use."""
        for entry in () if manifest is None else manifest.operators:
            if entry.operator == operator:
                return {i: self._read(ref) for i, ref in enumerate(entry.subtasks)}
        return {}

    def forget(self) -> None:
        """Lose every chain, as if the process had been replaced."""
        for kept in self.chains.values():
            kept.chain.close()
        self.chains.clear()

    def _read(self, ref: ObjectRef) -> Metadata:
        found = self.metadata.get(ref)
        if found is None:
            found = ParquetBackend(self._records).read_operator_checkpoint_metadata(ref)
            self.metadata.put(ref, found)
        return found
