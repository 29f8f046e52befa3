"""A job whose state and output are on a real S3 server, behind a line that breaks, loses nothing.

Everything goes through the fault proxy: requests are late, answered by 503, cut before the server
got them, after it did the work, and within the answer. Drivers die at storage calls besides, and
others go on with another parallelism.
"""

import itertools
import random

import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.runtime.driver.decide import JobStatus
from penstock.state.storage.urls import open_store
from penstock.testing import CrashError, Fault, FaultMode, LocalJob, assert_job_is_whole
from scripts.servers.fault_proxy import FaultPlan, FaultProxy, LineFault
from scripts.servers.s3 import BUCKET, S3Server
from tests.builders.lives import a_job_of
from tests.builders.profile import by_profile

EPOCHS = by_profile(30, 100, 1_000)
ROWS_PER_EPOCH = 4
KEYS = 7
RATE = by_profile(0.01, 0.005, 0.02)
"""Of requests, about a hundred per epoch, that are struck; each costs a tenth of a second."""


def run_through_deaths(job: LocalJob, draw: random.Random) -> tuple[JobStatus, int]:
    """Run a job to its end; return its status and how many of its drivers died before."""
    for deaths in itertools.count():
        mode = draw.choice([FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER])
        death = Fault(mode, at=draw.randint(200, 2_000))
        try:
            return job.run(death, parallelism=draw.randint(1, 3)), deaths
        except CrashError:
            continue
    raise AssertionError("the count has no end")


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_thousand_epochs_through_a_line_that_breaks_lose_nothing(
    s3_server: S3Server,
) -> None:
    rows = [{"n": n, "key": n % KEYS} for n in range(EPOCHS * ROWS_PER_EPOCH)]
    plan = FaultPlan(seed=20, rate=RATE, latency_seconds=0.001)
    with FaultProxy(s3_server.port, plan) as line:
        options = s3_server.options(line.endpoint)
        place = f"s3://{BUCKET}/{new_token()}"
        pipeline = pen.Pipeline("counts", parallelism=2)
        read = pipeline.read("rows", pen.list_source(rows))
        read.write(
            "raw", pen.files(f"{place}/raw", format="parquet", store_options=options)
        )
        counted = read.key_by("key").aggregate("count", count=pen.count(), sum=pen.sum("n"))
        updates = pen.files(f"{place}/counts", format="parquet", store_options=options)
        counted.write("counts", updates)
        job = a_job_of(
            pipeline, ROWS_PER_EPOCH, store=open_store(f"{place}/state", **options)
        )

        status, deaths = run_through_deaths(job, random.Random(20))
        assert status.phase is pen.JobPhase.FINISHED
        assert_job_is_whole(job.checkpoints)
        seen = line.traffic

    assert set(seen.faults) == set(LineFault), "the line broke in every way"
    assert deaths >= EPOCHS // 100
    # Read without the proxy: what the server has.
    direct = s3_server.options()
    written = pen.committed_files(f"{place}/raw", store_options=direct)
    assert len({file.epoch for file in written}) >= EPOCHS
    raw = pen.read_committed(f"{place}/raw", store_options=direct)
    assert sorted(row["n"] for row in raw.to_pylist()) == [row["n"] for row in rows]
    counts = pen.read_latest(f"{place}/counts", key="key", store_options=direct)
    expected = {
        key: (len(range(key, len(rows), KEYS)), sum(range(key, len(rows), KEYS)))
        for key in range(KEYS)
    }
    assert {
        row["key"]: (row["count"], row["sum"]) for row in counts.to_pylist()
    } == expected
