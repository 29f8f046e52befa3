"""Jobs on a standalone cluster: a real master and two workers, one of which is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.profile import takes_long
from tests.builders.spark_session import SparkProgram, wait_for_mark
from tests.builders.standalone_cluster import StandaloneCluster
from tests.spark.counting_job import CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("counting_program.py")
ROWS = 2_000
CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@pytest.fixture
def cluster(spark_scratch: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(spark_scratch, workers=2) as cluster:
        yield cluster


@takes_long
def test_a_job_on_a_standalone_cluster_loses_nothing_when_a_worker_is_killed(
    cluster: StandaloneCluster, spark_scratch: Path, tmp_path: Path
) -> None:
    driver = SparkProgram(PROGRAM, spark_scratch, cluster.master, conf=CONF)
    try:
        driver.hear_until("ready")
        # Each worker has an executor of the job before there is anything to run on it.
        for index in range(2):
            wait_for_mark(spark_scratch / f"work-{index}", "app-*/*/stderr")
        driver.tell(folder=str(tmp_path), rows=ROWS)
        while (driver.hear_until("status")["epoch"] or 0) < 3:
            pass
        cluster.workers[0].kill()
        ended = driver.hear_until("ended")
    finally:
        driver.kill()
    assert ended["phase"] == "finished"
    CountingJob(tmp_path, rows=ROWS).check()
