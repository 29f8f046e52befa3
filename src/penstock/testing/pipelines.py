"""LocalJob runs whole pipelines in this process, with faults; checks say whether state is whole.

    job = LocalJob(pipeline)
    job.run()                                      to the end of the data, or an EOF
    job.run(parallelism=3)                         a restart with more subtasks
    job.run(Fault(FaultMode.CRASH_BEFORE, at=7))   CrashError at the seventh storage call
    LocalJob(pipeline, chaos=Chaos(0.2, seed=1))   an exchange that loses and repeats

State is kept in memory, and the clock only moves when the job would wait. Each `run` acts as a
process of its own: only the store remains from the last one.

The functions `assert_…` check what must hold of a job's checkpoints, whatever happened to its
drivers. Each raises `AssertionError` with what is wrong and where. All of them only read, and
read every object that a kept epoch needs.
"""

from collections.abc import Callable, Iterable, Mapping

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_sink as list_sink
from penstock.connectors.memory import list_source as list_source
from penstock.core.clock import ManualClock as ManualClock
from penstock.core.ids import Generation, checksum_of
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, ManualPacer
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.in_process import NO_CHAOS, InProcessExecutor
from penstock.runtime.in_process import Chaos as Chaos
from penstock.runtime.task.task import Worker
from penstock.state.checkpoints import EpochStatus, JobCheckpoints, ParquetBackend
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.reading import read_epoch_record, read_identity
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    Committing,
    PinKind,
    Ready,
)
from penstock.state.protocol.retention import Epochs, is_kept
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing.faults import Call, CrashError, Fault, FaultyStore, stored_objects
from penstock.testing.given import START, InstantLike, shared_registry, to_instant
from penstock.testing.stepped_job import NO_CACHE, rescaled


class LocalJob:
    """A job that can be run here many times. Only its store lasts between runs."""

    def __init__(
        self,
        pipeline: Pipeline | LogicalGraph,
        *,
        store: ObjectStore | None = None,
        clock: ManualClock | None = None,
        now: InstantLike = START,
        chaos: Chaos = NO_CHAOS,
        seed: int = 0,
        settings: DriverSettings | None = None,
        registry: Registry | None = None,
    ) -> None:
        """Prepare a job; `seed` orders what different producers send to one consumer."""
        if isinstance(pipeline, Pipeline):
            registry = registry or pipeline.registry
            pipeline = pipeline.graph()
        self.graph: LogicalGraph = pipeline
        self.registry = registry or shared_registry()
        self.store: ObjectStore = MemoryStore() if store is None else store
        self.clock = ManualClock(to_instant(now)) if clock is None else clock
        self.chaos = chaos
        self.calls: list[Call] = []
        """Every storage call of the last run."""
        self._seed = seed
        self._settings = settings or DriverSettings()

    def run(
        self,
        *faults: Fault,
        parallelism: int | None = None,
        epochs: int | None = None,
        restore: Epochs | None = None,
        between_supersteps: Callable[[int], None] | None = None,
    ) -> JobStatus:
        """Run the job until its data ends, it stops, or it fails; return its status.

        With `epochs` it stops after so many, and one more to close. A fault or an `ABORT` may
        raise `CrashError`, as if the process had died there: run the job again to see what it
        recovers. `between_supersteps` is called with the level that was run, and may raise a
        `CrashError` too.
        """
        graph = self.graph if parallelism is None else rescaled(self.graph, parallelism)
        store = FaultyStore(self.store, *faults)
        executor = InProcessExecutor(
            Worker(store, NO_CACHE, self.registry, self.clock),
            seed=self._seed,
            chaos=self.chaos,
            between_supersteps=between_supersteps,
        )
        environment = JobEnvironment(
            graph, store, NO_CACHE, executor, self.registry, self.clock, self._settings
        )

        def stop_in_time(status: JobStatus) -> None:
            if epochs is not None and status.epochs_run >= epochs:
                driver.request_stop(StopMode.CHECKPOINT)

        driver = JobDriver(
            environment,
            pacer=ManualPacer(self.clock),
            listeners=[StatusFunction(stop_in_time)],
        )
        try:
            return driver.run(restore=restore)
        finally:
            self.calls = store.calls

    def run_until_done(
        self, *faults: Fault, parallelism: int | None = None, max_starts: int = 10
    ) -> JobStatus:
        """Run the job, and after every crash once more, until a run comes to its end.

        `faults` apply to the first run only.
        """
        for _ in range(max_starts - 1):
            try:
                return self.run(*faults, parallelism=parallelism)
            except CrashError:
                faults = ()
        return self.run(*faults, parallelism=parallelism)

    @property
    def checkpoints(self) -> JobCheckpoints:
        """The job's checkpoints, for `assert_job_is_whole` and other checks."""
        return JobCheckpoints(self.store, self.graph.job, self.clock, self._settings.rules)


def run_pipeline(
    pipeline: Pipeline | LogicalGraph, *, parallelism: int | None = None
) -> JobStatus:
    """Run a pipeline to its end in this process, its state in memory; return its status.

    Sinks such as `list_sink` hold its output. For restarts and crashes see `LocalJob`.
    """
    return LocalJob(pipeline).run(parallelism=parallelism)


def assert_job_is_whole(checkpoints: JobCheckpoints) -> None:
    """Check that every kept epoch of a job could be restored now.

    Epochs from the floor up to the newest have no gap; each of them, and each pinned one,
    has its manifest, all metadata and all state files, with the recorded sizes and
    checksums. All are committed, except perhaps the newest.

    >>> from penstock.core.ids import JobId
    >>> from penstock.state.storage.memory import MemoryStore
    >>> assert_job_is_whole(JobCheckpoints(MemoryStore(), JobId("new")))
    """
    epochs = checkpoints.epochs()
    _assert_no_gap(checkpoints, epochs)
    for index, epoch in enumerate(epochs):
        ref = epoch.record.ref
        allowed = Ready | Committing if index == 0 else Ready
        # A restore may skip a damaged commit: an abandoned epoch stays uncommitted.
        if epoch.canonical is not False and not isinstance(epoch.status, allowed):
            raise AssertionError(f"{ref} is kept, but {type(epoch.status).__name__}")
        _assert_objects_exist(checkpoints, checkpoints.manifest(ref))


def _assert_no_gap(checkpoints: JobCheckpoints, epochs: tuple[EpochStatus, ...]) -> None:
    state = checkpoints.read_retention()
    numbers = {epoch.record.ref.epoch for epoch in epochs}
    identity = run_steps(checkpoints.store, read_identity(checkpoints.job))
    if numbers and identity is not None:
        floor = max(state.collected_before, identity.first_epoch)
        gaps = set(range(floor, max(numbers))) - numbers
        if gaps:
            raise AssertionError(f"{checkpoints.job} has lost the epochs {sorted(gaps)}")
    for pin in state.pins:
        if pin.ref.epoch not in numbers:
            raise AssertionError(f"{pin.name} pins {pin.ref}, which has no record")


def _assert_objects_exist(
    checkpoints: JobCheckpoints, manifest: CheckpointManifest
) -> None:
    backend = ParquetBackend(checkpoints.store)
    for operator in manifest.operators:
        for subtask in operator.subtasks:
            metadata = backend.read_operator_checkpoint_metadata(subtask)
            for table in metadata.table_checkpoint_metadata.values():
                # Every kind of table lists its files in the same fields.
                listed = pb.KeyedTableSubtaskCheckpointMetadata.FromString(table.data)
                for file in listed.files:
                    data, ref = checkpoints.store.read(file.path), manifest.ref
                    if data is None:
                        raise AssertionError(f"{file.path} is gone, and {ref} needs it")
                    if (len(data), checksum_of(data)) != (file.size_bytes, file.checksum):
                        raise AssertionError(
                            f"{file.path} of {ref} is not what was written"
                        )


def assert_acknowledged_epochs_survive(
    checkpoints: JobCheckpoints, acknowledged: Iterable[CheckpointRef]
) -> None:
    """Check that every checkpoint that was acknowledged to a driver still owns its epoch.

    Epochs that a collection has deleted since may be gone.
    """
    state = checkpoints.read_retention()
    for ref in acknowledged:
        record = run_steps(checkpoints.store, read_epoch_record(ref.job, ref.epoch))
        if record is None:
            if is_kept(state, ref):
                raise AssertionError(f"{ref} was acknowledged and its record is lost")
        elif record.ref != ref:
            raise AssertionError(f"{ref} was acknowledged, but its epoch is {record.ref}")


def assert_commits_were_permitted(
    checkpoints: JobCheckpoints, commits: Iterable[tuple[CheckpointRef, Generation]]
) -> None:
    """Check that sinks committed acknowledged checkpoints only, and all of them.

    `commits` are the checkpoints the sinks committed, each with the generation that did.
    """
    done = list(commits)
    assert_acknowledged_epochs_survive(checkpoints, [ref for ref, _ in done])
    for ref, generation in done:
        if generation < ref.generation:
            raise AssertionError(
                f"generation {generation} committed {ref} before it existed"
            )
    refs = {ref for ref, _ in done}
    for epoch in checkpoints.epochs():
        ready = epoch.status
        if isinstance(ready, Ready) and ready.manifest.needs_commit:
            ref = epoch.record.ref
            if ref not in refs:
                raise AssertionError(f"{ref} is marked as committed, but no sink did")


def assert_no_restore_is_left_pinned(checkpoints: JobCheckpoints) -> None:
    """Check that no pin is left of a restore that has taken effect."""
    left = [pin for pin in checkpoints.pins() if pin.kind is PinKind.RESTORE]
    if left:
        names = ", ".join(f"{pin.name} ({pin.ref})" for pin in left)
        raise AssertionError(f"restores of {checkpoints.job} still pin epochs: {names}")


def assert_nothing_was_changed(before: Mapping[str, bytes], store: ObjectStore) -> None:
    """Check that a store holds exactly what it held when `stored_objects` was called."""
    after = stored_objects(store)
    for path in sorted({*before, *after}):
        if path not in after:
            raise AssertionError(f"{path} was deleted")
        if path not in before:
            raise AssertionError(f"{path} was created")
        if before[path] != after[path]:
            raise AssertionError(f"{path} was overwritten")
