"""Every executor there is, each as something that makes one over a store."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from penstock.core.clock import Clock
from penstock.runtime.executor import Executor
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.worker import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.object_store import ObjectStore
from tests.builders.pipeline_job import REGISTRY

MakeExecutor: TypeAlias = Callable[[ObjectStore, Clock], Executor]


@pytest.fixture(params=["in-process"])
def executor_under_test(request: pytest.FixtureRequest, tmp_path: Path) -> MakeExecutor:
    def in_process(store: ObjectStore, clock: Clock) -> Executor:
        cache = FileCache(tmp_path / "worker-cache", limit_bytes=1 << 30)
        return InProcessExecutor(Worker(store, cache, REGISTRY, clock), seed=11)

    return {"in-process": in_process}[request.param]
