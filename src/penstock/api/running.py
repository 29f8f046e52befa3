"""Running a pipeline: on Spark, or in this process.

The same supersteps, state and protocol either way. In process the tasks run one after the
other right here: for tests, notebooks and small jobs.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.clock import Clock, SystemClock
from penstock.core.ids import Epoch, SavepointName
from penstock.core.settings import Settings, current
from penstock.core.tokens import new_token
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.runtime.driver import JobDriver
from penstock.runtime.environment import DriverSettings, JobEnvironment
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.outcomes import EpochRan
from penstock.runtime.status import JobStatus
from penstock.runtime.worker import Worker
from penstock.state.files.cache import FileCache
from penstock.state.protocol.pinning import Epochs
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.probe import probe_store
from penstock.state.storage.urls import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REMOTE_EPOCH_MICROS = 10_000_000
_LOCAL_EPOCH_MICROS = 1_000_000
_REMOTE_SCHEMES = ("s3:", "gs:", "az:")


def run_in_process(
    graph: LogicalGraph,
    *,
    checkpoint: str | ObjectStore,
    registry: Registry,
    restore: int | str | None = None,
    allow_dropped_state: bool = False,
    on_status: Callable[[JobStatus], None] | None = None,
    settings: DriverSettings | None = None,
    clock: Clock | None = None,
) -> JobStatus:
    """Run a job until its data ends; one that ran before goes on from its last epoch.

    `checkpoint` is a URL or an open store. `restore` goes back to an epoch by number or to a
    savepoint by name first. A failure that does not pass is raised. `settings` replaces
    what follows from the process's settings and the store.
    """
    store = open_store(checkpoint) if isinstance(checkpoint, str) else checkpoint
    probe_store(store, graph.job, new_token())
    chosen = current()
    with tempfile.TemporaryDirectory(prefix="penstock-cache-") as folder:
        root = Path(chosen.cache_root or folder)
        cache = FileCache(root, limit_bytes=chosen.cache_limit_bytes)
        timekeeper = clock or SystemClock()
        worker = Worker(
            store,
            cache,
            registry,
            timekeeper,
            memory_budget_bytes=chosen.memory_budget_bytes,
        )
        environment = JobEnvironment(
            graph,
            store,
            cache,
            InProcessExecutor(worker),
            registry,
            timekeeper,
            settings
            or driver_settings(chosen, checkpoint, allow_dropped_state=allow_dropped_state),
        )
        driver = JobDriver(environment, on_status=on_status)
        return driver.run(restore=which_epoch(restore))


def run(
    graph: LogicalGraph,
    *,
    checkpoint: str | ObjectStore,
    registry: Registry,
    master: str | None = None,
    session: "SparkSession | None" = None,
    restore: int | str | None = None,
    allow_dropped_state: bool = False,
    on_status: Callable[[JobStatus], None] | None = None,
    settings: DriverSettings | None = None,
    shows_logs: bool = False,
    on_driver: Callable[[JobDriver], None] | None = None,
    on_epoch: Callable[[EpochRan], None] | None = None,
) -> JobStatus:
    """Run a job on Spark; embedded in this process unless `master` or `session` says otherwise."""
    # Late: whoever runs in process needs neither Spark nor the seconds it takes to load.
    from penstock.runtime.spark.running import run_on_spark

    store = open_store(checkpoint) if isinstance(checkpoint, str) else checkpoint
    probe_store(store, graph.job, new_token())
    chosen = current()
    return run_on_spark(
        graph,
        store,
        registry,
        settings=chosen,
        driver_settings=settings
        or driver_settings(chosen, checkpoint, allow_dropped_state=allow_dropped_state),
        session=session,
        master=master,
        restore=which_epoch(restore),
        on_status=on_status,
        shows_logs=shows_logs,
        on_driver=on_driver,
        on_epoch=on_epoch,
    )


def driver_settings(
    settings: Settings, checkpoint: str | ObjectStore, *, allow_dropped_state: bool = False
) -> DriverSettings:
    """Return how a job on this store is driven: objects far away want longer epochs."""
    is_remote = isinstance(checkpoint, str) and checkpoint.startswith(_REMOTE_SCHEMES)
    return DriverSettings(
        target_epoch_micros=_REMOTE_EPOCH_MICROS if is_remote else _LOCAL_EPOCH_MICROS,
        keep_epochs=settings.keep_epochs,
        compaction=settings.compaction,
        allow_dropped_state=allow_dropped_state,
    )


def which_epoch(restore: int | str | None) -> Epochs | None:
    """Return what a user's number or name means; None for no restore."""
    if restore is None:
        return None
    if isinstance(restore, str):
        return Epochs(savepoint=SavepointName(restore))
    return Epochs(number=Epoch(restore))
