"""SuperstepTask: what Spark sends to a worker to run one task of one superstep of one epoch.

A task is small whatever the job's size: it names the checkpoint, and does not contain it. A
process keeps its worker, and with it the chains in memory, for as long as Spark reuses it.

**Wire.** Records are Arrow batches of four columns. A Spark row is a whole batch of rows, not
one of them, so a shuffle moves few large rows and never reads the user's schema.

**Plans.** The plan of an epoch travels beside the job, or inside it:

| plan | travels | DataFrame |
|---|---|---|
| small, with a Spark context | as a local property, sent with every task | built once |
| large, or behind Spark Connect | in the closure, fetched once per executor | built every epoch |

The first way saves a third of a small epoch. A large plan would be sent as often as there are
tasks; Spark Connect has no local properties.
"""

import base64
import cProfile
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.core.clock import new_token
from penstock.core.settings import Settings, adopt, current
from penstock.errors import InternalError
from penstock.graph.codec import decode_graph
from penstock.graph.logical import UserFunction
from penstock.operators.registry import Registry
from penstock.operators.user_functions import pickle_function, unpickle_function
from penstock.operators.worker_output import OutputCapture
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph
from penstock.runtime.spark.session import context_of
from penstock.runtime.task.task import Worker, run_task
from penstock.runtime.task.wire import Record
from penstock.state.files.cache import FileCache
from penstock.state.storage.object_store import ObjectStore

SPARK_SCHEMA = "route INT, kind TINYINT, header BINARY, payload BINARY"
_COLUMNS: dict[str, pa.DataType] = {
    "route": pa.int32(),
    "kind": pa.int8(),
    "header": pa.binary(),
    "payload": pa.binary(),
}
ARROW_SCHEMA = pa.schema(_COLUMNS)
BATCH_BYTES = 4 << 20
"""A batch of records is handed to Spark at about this size."""


def to_batches(records: Iterable[Record]) -> Iterator[pa.RecordBatch]:
    """Return records as batches of the wire schema, in their order."""
    waiting: list[Record] = []
    waiting_bytes = 0
    for record in records:
        waiting.append(record)
        waiting_bytes += memoryview(record.payload).nbytes
        if waiting_bytes >= BATCH_BYTES:
            yield _to_batch(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _to_batch(waiting)


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    """Return the records of batches of the wire schema; payloads are views, not copies."""
    for batch in batches:
        known: Any = (
            batch.column(name).to_pylist() for name in ("route", "kind", "header")
        )
        payloads: Any = batch.column("payload")
        yield from map(Record, *known, (payload.as_buffer() for payload in payloads))


def _to_batch(records: list[Record]) -> pa.RecordBatch:
    routes, kinds, headers, payloads = zip(*records, strict=True)
    known = (pa.array(routes, pa.int32()), pa.array(kinds, pa.int8()), pa.array(headers))
    # Built by hand: `pa.array` would never release memoryviews of the payloads.
    ends: Any = np.cumsum(
        [0, *(memoryview(data).nbytes for data in payloads)], dtype=np.int32
    )
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(payloads))]
    joined = pa.Array.from_buffers(pa.binary(), len(records), buffers)
    return pa.RecordBatch.from_arrays([*known, joined], schema=ARROW_SCHEMA)


@contextmanager
def profiled(name: str) -> Iterator[None]:
    """Profile the body if the settings name a folder for the statistics."""
    root = current().profile_root
    if root is None:
        yield
        return
    profile = cProfile.Profile()
    try:
        with profile:
            yield
    finally:
        Path(root).mkdir(parents=True, exist_ok=True)
        profile.dump_stats(Path(root) / f"{name}-{new_token()}.prof")


_PROPERTY = "penstock.epoch"
_WHAT = "the plan of an epoch"
LARGEST_PROPERTY_CHARACTERS = 16 << 10


def send_beside(session: SparkSession, plan: EpochPlan) -> bool:
    """Attach a plan to the jobs that this thread starts next; return whether it could."""
    context = context_of(session)
    if context is None:
        return False
    pickled = pickle_function(plan, _WHAT).pickled
    text = base64.b64encode(pickled).decode("ascii")
    if len(text) > LARGEST_PROPERTY_CHARACTERS:
        return False
    context.setLocalProperty(_PROPERTY, text)
    return True


def plan_beside() -> EpochPlan:
    """Return the plan that was sent beside the job of this task."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_PROPERTY)
    if text is None:
        raise InternalError("a task of a superstep was started without a plan")
    return _decoded(text)


@lru_cache(maxsize=2)
def _decoded(text: str) -> EpochPlan:
    plan = unpickle_function(UserFunction(_WHAT, base64.b64decode(text)))
    if not isinstance(plan, EpochPlan):
        raise InternalError(
            f"a task was sent {type(plan).__name__} as the plan of its epoch"
        )
    return plan


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a Python process of an executor needs to be a `Worker`."""

    name: str
    """Distinguishes the specs of one driver; specs of equal names share a worker."""
    store: ObjectStore
    cache_root: str
    """The folder of cached state files, shared by all processes of a machine."""
    settings: Settings
    registry: UserFunction
    """The registry of the pipeline, pickled."""
    log_level: int = logging.WARNING
    """The level of the driver's root logger, by which its workers log too."""


@dataclass(frozen=True, slots=True)
class SuperstepTask:
    """One superstep of one epoch, as a function over Arrow batches for `mapInArrow`."""

    graph: bytes
    epoch: EpochPlan | None
    """The plan; None if it is sent beside the job: see `plan_beside`."""
    level: int
    worker: WorkerSpec
    is_fed: bool = False
    """Whether the batches are rows for the task's source, which only the first level has."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task of this partition."""
        release_at_the_end()
        worker, batches = worker_of(self.worker), iter(batches)
        if self.level == 0 and not self.is_fed:
            # The rows of `range` only make Spark start the tasks; they carry nothing.
            for _ in batches:
                pass
        job, task = _job_of(self.graph), partition_number()
        _, subtask = job.task(self.level, task)
        output = OutputCapture(subtask.index, self.worker.log_level)
        worker.take_output = output.take
        with profiled(f"level-{self.level}"), output:
            yield from to_batches(
                run_task(
                    job,
                    self.epoch or plan_beside(),
                    from_batches(() if self.is_fed else batches),
                    worker,
                    level=self.level,
                    task=task,
                    fed=batches if self.is_fed else None,
                )
            )
        # A failed task left rows unread, and Spark reuses a worker only if it has read all.
        for _ in batches:
            pass
        _settle_memory()


_tasks_run = 0
_SETTLED_AFTER_TASKS = (1, 8)


def _settle_memory() -> None:
    """Exclude what the first tasks loaded from Python's garbage collection.

    Spark's worker processes collect after every task, which takes longer than the task itself
    if it traverses all modules.
    """
    global _tasks_run  # noqa: PLW0603 (a process is what is counted in)
    _tasks_run += 1
    if _tasks_run in _SETTLED_AFTER_TASKS:
        gc.collect()
        gc.freeze()


def partition_number() -> int:
    """Return the number of this task's partition, to which its records were routed."""
    context = TaskContext.get()
    if context is None:
        raise InternalError("a task of a superstep runs outside of Spark")
    return int(context.partitionId())


@lru_cache(maxsize=4)
def _job_of(graph: bytes) -> PhysicalPlan:
    return compile_graph(decode_graph(graph))


_workers: dict[str, Worker] = {}
"""The workers of this process, the one that was used last at the end."""
_MOST_WORKERS = 4


def worker_of(spec: WorkerSpec) -> Worker:
    """Return this process's worker, which the first task makes after the fork.

    Spark gives the same process tasks of several jobs, whose settings may differ. Of jobs that
    have ended nobody tells; so only the workers that were used last are kept.
    """
    adopt(spec.settings)
    worker = _workers.pop(spec.name, None)
    if worker is None:
        registry = unpickle_function(spec.registry)
        if not isinstance(registry, Registry):
            raise InternalError(
                f"a worker was sent {type(registry).__name__} as its registry"
            )
        limit_bytes = spec.settings.cache_limit_bytes
        worker = Worker(
            spec.store,
            FileCache(Path(spec.cache_root), limit_bytes=limit_bytes),
            registry,
            memory_budget_bytes=spec.settings.memory_budget_bytes,
        )
    _workers[spec.name] = worker
    while len(_workers) > _MOST_WORKERS:
        _workers.pop(next(iter(_workers))).forget()
    return worker


_SIDE_BY_SIDE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Farewell:
    """Releases what a job has left in a Python process that Spark keeps, for `mapInArrow`."""

    name: str
    """The name of the job's `WorkerSpec`."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Release the job's worker, if this process has one."""
        for _ in batches:
            pass
        worker = _workers.pop(self.name, None)
        if worker is not None:
            worker.forget()
        # So long that the tasks run side by side, each in another process.
        time.sleep(_SIDE_BY_SIDE_SECONDS)
        yield from ()


_RELEASE_SECONDS = 10


@cache
def release_at_the_end() -> None:
    """Release all operators when Spark ends this process: they may hold connections.

    Spark sends SIGHUP to its Python processes when it stops, and when its JVM has ended.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, _release_and_leave)


def _release_and_leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    # A release that hangs must not keep the process: without a handler this signal ends it.
    signal.alarm(_RELEASE_SECONDS)
    for worker in _workers.values():
        worker.forget()
    os._exit(0)
