"""Every golden case in every mode, in this process."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core.clock import new_token
from penstock.operators import Registry
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.executor import Executor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import Fault, FaultMode
from tests.builders.profile import by_profile
from tests.golden_cases.catalog import CASES
from tests.golden_cases.golden_job import MODES, GoldenCase, GoldenJob, golden_data

pytestmark = pytest.mark.slow


class InThisProcess:
    """Tasks run right here and use the driver's store, faults included."""

    most_rows = by_profile(default=100, ci=20, nightly=20)
    deaths: Sequence[Fault] = (
        # Some subtasks have written what they keep of epoch 2, others have not.
        Fault(FaultMode.CRASH_BEFORE, 2, "create", "*/0000000002/operator-*"),
        Fault(FaultMode.CRASH_BEFORE, 1, "create", "*/0000000003/manifest.pb"),
        # Epoch 3 is acknowledged, and its rows are not yet out.
        Fault(FaultMode.CRASH_AFTER, 1, "create", "*/epochs/0000000003.record"),
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_store(self) -> ObjectStore:
        return MemoryStore()

    def new_output(self) -> str:
        return f"memory:golden-{new_token()}"

    def executor(
        self, driver_store: ObjectStore, store: ObjectStore, registry: Registry
    ) -> Executor:
        del store
        cache = FileCache(self._folder / "worker-cache", limit_bytes=1 << 30)
        return InProcessExecutor(Worker(driver_store, cache, registry), seed=5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", MODES)
def test_a_golden_case_comes_out_as_expected(
    case: GoldenCase, mode: str, tmp_path: Path
) -> None:
    MODES[mode](GoldenJob(case, golden_data(), InThisProcess(tmp_path), tmp_path))
