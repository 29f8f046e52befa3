"""Whole pipelines in this process, in no time: run, crash, restart, rescale, misbehave.

    job = LocalJob(pipeline)
    job.run()                                      to the end of the data, or an EOF
    job.run(parallelism=3)                         a restart with more subtasks
    job.run(Fault(FaultMode.CRASH_BEFORE, at=7))   CrashError at the seventh storage call
    LocalJob(pipeline, chaos=Chaos(0.2, seed=1))   an exchange that loses and repeats

State is kept in memory, and a clock that only moves when the job would wait takes the place
of time. Each `run` is a process of its own: nothing but the store survives from the last.
"""

from collections.abc import Callable
from dataclasses import replace

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_sink as list_sink
from penstock.connectors.memory import list_source as list_source
from penstock.core.clock import ManualClock as ManualClock
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver, ManualPacer
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.in_process import NO_CHAOS, InProcessExecutor
from penstock.runtime.in_process import Chaos as Chaos
from penstock.runtime.task.worker import Worker
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing.chain_nodes import START, shared_registry
from penstock.testing.chain_subtasks import NO_CACHE, rescale_nodes
from penstock.testing.faults import Call, CrashError, Fault, FaultyStore
from penstock.testing.given import InstantLike, to_instant


class LocalJob:
    """A job that is run here as often as wanted. What lasts between runs is its store."""

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
        """Run the job until its data ends, it stops, or it fails; return how it stands then.

        With `epochs` it stops after so many, and one more to close. A `CrashError`, of a fault or an `ABORT`, comes
        out as if the process had died there: run the job again to see what it recovers.
        `between_supersteps` is called with the level that was run, and may raise one too.
        """
        graph = self.graph
        if parallelism is not None:
            graph = replace(graph, nodes=rescale_nodes(graph.nodes, parallelism))
        store = FaultyStore(self.store, *faults)
        executor = InProcessExecutor(
            Worker(store, NO_CACHE, self.registry, self.clock),
            seed=self._seed,
            chaos=self.chaos,
            between_supersteps=between_supersteps,
        )
        environment = JobEnvironment(
            graph,
            store,
            NO_CACHE,
            executor,
            self.registry,
            clock=self.clock,
            settings=self._settings,
        )
        return self._drive(environment, store, epochs, restore)

    def run_until_done(
        self, *faults: Fault, parallelism: int | None = None, max_starts: int = 10
    ) -> JobStatus:
        """Run the job, and after every crash once more, until a run comes to its end.

        `faults` strike in the first run only.
        """
        for _ in range(max_starts - 1):
            try:
                return self.run(*faults, parallelism=parallelism)
            except CrashError:
                faults = ()
        return self.run(*faults, parallelism=parallelism)

    @property
    def checkpoints(self) -> JobCheckpoints:
        """The job's checkpoints, for `assert_job_is_whole` and other looks at them."""
        return JobCheckpoints(self.store, self.graph.job, self.clock, self._settings.rules)

    def _drive(
        self,
        environment: JobEnvironment,
        store: FaultyStore,
        epochs: int | None,
        restore: Epochs | None,
    ) -> JobStatus:
        def stop_in_time(status: JobStatus) -> None:
            if epochs is not None and status.epochs_run >= epochs:
                driver.request_stop(StopMode.CHECKPOINT)

        pacer = ManualPacer(self.clock)
        driver = JobDriver(environment, pacer=pacer, on_status=stop_in_time)
        try:
            return driver.run(restore=restore)
        finally:
            self.calls = store.calls


def run_pipeline(
    pipeline: Pipeline | LogicalGraph, *, parallelism: int | None = None
) -> JobStatus:
    """Run a pipeline to its end in this process, its state in memory; return how it ended.

    Sinks such as `list_sink` hold what it gave. For restarts and crashes see `LocalJob`.
    """
    return LocalJob(pipeline).run(parallelism=parallelism)
