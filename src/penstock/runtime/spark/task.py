"""What Spark ships to a worker: which superstep of which epoch, and where state lives.

Small whatever the job's size: the checkpoint is named, not contained. A process keeps its
worker, and with it the chains it remembers, for as long as Spark reuses it.
"""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from penstock.connectors.catalog import default_registry
from penstock.core.clock import Clock, SystemClock
from penstock.core.settings import Settings, adopt
from penstock.errors import InternalError
from penstock.graph.codec import decode_graph, fingerprint_of
from penstock.graph.logical import UserFunction
from penstock.operators.registry import Registry
from penstock.operators.user_functions import unpickle_function
from penstock.runtime.epoch_plan import EpochPlan
from penstock.runtime.physical import compile_graph
from penstock.runtime.spark.exchange import from_batches, to_batches
from penstock.runtime.spark.plan_delivery import plan_beside
from penstock.runtime.spark.profiling import profiled
from penstock.runtime.superstep import CompiledJob, run_task
from penstock.runtime.worker import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a Python process of an executor needs to be a `Worker`."""

    name: str
    """Tells the specs of one driver apart; equal names share a worker."""
    store: ObjectStore
    cache_root: str
    """Shared by all processes of a machine."""
    settings: Settings
    registry: UserFunction | None = None
    """A user's own registry; None for the built-in kinds and installed plug-ins."""
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class SuperstepTask:
    """One superstep of one epoch, as a function over Arrow batches for `mapInArrow`."""

    graph: bytes
    epoch: EpochPlan | None
    """None if it is sent beside the job; see `plan_delivery`."""
    level: int
    worker: WorkerSpec
    is_fed: bool = False
    """Whether the batches are rows for the source of the task, in the first level."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task that this partition is."""
        worker = worker_of(self.worker)
        fed = iter(batches) if self.is_fed else None
        if fed is not None:
            batches = ()
        elif self.level == 0:
            # These rows only make the tasks; they carry nothing.
            for _ in batches:
                pass
            batches = ()
        with profiled(f"level-{self.level}"):
            yield from to_batches(
                run_task(
                    _job_of(self.graph),
                    self.epoch or plan_beside(),
                    from_batches(batches),
                    worker,
                    level=self.level,
                    task=partition_number(),
                    fed=fed,
                )
            )
        # A task that failed left rows unread; Spark reuses only a worker that has read all.
        for _ in fed or ():
            pass
        _settle_memory()


_tasks_run = 0
_SETTLED_AFTER_TASKS = (1, 8)


def _settle_memory() -> None:
    """Take what the first tasks loaded out of the sight of Python's garbage collector.

    Spark's worker processes collect after every task, which with all modules in sight takes
    longer than the task itself.
    """
    global _tasks_run  # noqa: PLW0603 (a process is what is counted in)
    _tasks_run += 1
    if _tasks_run in _SETTLED_AFTER_TASKS:
        gc.collect()
        gc.freeze()


def partition_number() -> int:
    """Return which partition this task is: the number that records were routed to."""
    context = TaskContext.get()
    if context is None:
        raise InternalError("a task of a superstep runs outside of Spark")
    return int(context.partitionId())


@lru_cache(maxsize=4)
def _job_of(graph: bytes) -> CompiledJob:
    decoded = decode_graph(graph)
    return CompiledJob(compile_graph(decoded), fingerprint_of(decoded))


_workers: dict[str, Worker] = {}


def worker_of(spec: WorkerSpec) -> Worker:
    """Return this process's worker; the first task makes it, after the fork."""
    worker = _workers.get(spec.name)
    if worker is None:
        adopt(spec.settings)
        limit_bytes = spec.settings.cache_limit_bytes
        worker = _workers[spec.name] = Worker(
            spec.store,
            FileCache(Path(spec.cache_root), limit_bytes=limit_bytes),
            _registry_of(spec),
            spec.clock,
            memory_budget_bytes=spec.settings.memory_budget_bytes,
        )
    return worker


def _registry_of(spec: WorkerSpec) -> Registry:
    if spec.registry is None:
        return default_registry()
    registry = unpickle_function(spec.registry)
    if not isinstance(registry, Registry):
        raise InternalError(f"a worker was sent {type(registry).__name__} as its registry")
    return registry
