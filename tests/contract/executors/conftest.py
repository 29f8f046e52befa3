"""Every executor there is, each as something that makes one over a store it can use."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from penstock.core.clock import Clock, new_token
from penstock.core.settings import current
from penstock.operators.user_functions import pickle_function
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.executor import Executor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from tests.builders.pipeline_job import REGISTRY


class MakeExecutor(Protocol):
    """Makes executors of one kind."""

    releases_on_close: bool
    """Whether workers are this process's own, so that closing reaches them."""

    def new_store(self) -> ObjectStore:
        """Return an empty store that driver and workers share."""
        ...

    def __call__(self, store: ObjectStore, clock: Clock) -> Executor:
        """Return an executor whose tasks use that store."""
        ...


class MakeInProcess:
    """Tasks run right here."""

    releases_on_close = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_store(self) -> ObjectStore:
        return MemoryStore()

    def __call__(self, store: ObjectStore, clock: Clock) -> Executor:
        cache = FileCache(self._folder / "worker-cache", limit_bytes=1 << 30)
        return InProcessExecutor(Worker(store, cache, REGISTRY, clock), seed=11)


class MakeOnSpark:
    """Tasks run in Spark's Python workers, which share nothing but the disk with this process."""

    releases_on_close = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_store(self) -> ObjectStore:
        return open_store(str(self._folder / f"store-{new_token()}"), durable=False)

    def __call__(self, store: ObjectStore, clock: Clock) -> Executor:
        from penstock.runtime.spark.executor import SparkExecutor
        from penstock.runtime.spark.task import WorkerSpec
        from tests.builders.spark_session import shared_session

        del clock  # workers have their own; epochs go by the plan's time
        cache_root = str(self._folder / "worker-cache")
        registry = pickle_function(REGISTRY, "registry")
        spec = WorkerSpec(new_token(), store, cache_root, current(), registry)
        return SparkExecutor(shared_session(), spec)


KINDS: dict[str, Callable[[Path], MakeExecutor]] = {
    "in-process": MakeInProcess,
    "spark": MakeOnSpark,
}


@pytest.fixture(
    params=[
        "in-process",
        pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow]),
    ]
)
def executor_under_test(request: pytest.FixtureRequest, tmp_path: Path) -> MakeExecutor:
    return KINDS[request.param](tmp_path)
