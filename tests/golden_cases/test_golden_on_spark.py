"""Every golden case in every mode, on an embedded Spark."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core.clock import new_token
from penstock.core.settings import current
from penstock.operators import Registry
from penstock.operators.user_functions import pickle_function
from penstock.runtime.plan.executor import Executor
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.task import WorkerSpec
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import Fault, FaultMode
from tests.builders.spark_session import shared_session
from tests.golden_cases.catalog import CASES
from tests.golden_cases.golden_job import MODES, GoldenCase, GoldenJob, golden_data

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class OnSpark:
    """Tasks run in Spark's Python workers; only the driver's own calls suffer faults."""

    most_rows = 400
    deaths: Sequence[Fault] = (
        # All tasks of epoch 2 have done their work, and none of it counts.
        Fault(FaultMode.CRASH_BEFORE, 1, "create", "*/0000000002/manifest.pb"),
        # Epoch 3 is acknowledged, and its rows are not yet out.
        Fault(FaultMode.CRASH_AFTER, 1, "create", "*/epochs/0000000003.record"),
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_store(self) -> ObjectStore:
        return open_store(str(self._folder / "checkpoints"), durable=False)

    def new_output(self) -> str:
        return str(self._folder / "out")

    def executor(
        self, driver_store: ObjectStore, store: ObjectStore, registry: Registry
    ) -> Executor:
        del driver_store
        cache_root = str(self._folder / "worker-cache")
        kinds = pickle_function(registry, "registry")
        spec = WorkerSpec(new_token(), store, cache_root, current(), kinds)
        return SparkExecutor(shared_session(), spec)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", MODES)
def test_a_golden_case_comes_out_as_expected_on_spark(
    case: GoldenCase, mode: str, tmp_path: Path
) -> None:
    MODES[mode](GoldenJob(case, golden_data(), OnSpark(tmp_path), tmp_path))
