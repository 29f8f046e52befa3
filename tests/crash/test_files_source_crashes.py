"""A job that reads files dies anywhere, starts again, and has every row once."""

import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.files.connector import files
from penstock.connectors.memory import list_sink
from penstock.core.clock import new_token
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.in_process import Chaos
from penstock.state.storage.urls import open_store
from penstock.testing import Fault, FaultMode, LocalJob
from tests.builders.files_job import some_rows, to_bytes

SETTINGS = DriverSettings(budget=SourceBudget(rows=15))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_every_row_is_read_once_wherever_the_job_dies(ending: str) -> None:
    name = str(new_token())
    store = open_store(f"memory:{name}")
    for index in range(3):
        rows = some_rows(20 * index, 20 * index + 20)
        store.put(f"in/{index}.{ending}", to_bytes(ending, rows))
    out = list_sink(f"files-source-crashes-{name}")
    pipeline = Pipeline("job", parallelism=2)
    stream = pipeline.read("in", files(f"memory:{name}/in/*.{ending}"))
    stream.rebalance(parallelism=2).write("out", out)
    whole = LocalJob(pipeline, settings=SETTINGS)
    whole.run()
    calls = len(whole.calls)
    assert calls > 40

    for at in range(1, calls, 7):
        out.clear()
        job = LocalJob(pipeline, settings=SETTINGS, chaos=Chaos(0.1, seed=at))
        job.run_until_done(Fault(FaultMode.CRASH_BEFORE, at=at), parallelism=1 + at % 3)

        assert sorted(row["n"] for row in out.rows()) == list(range(60)), at
