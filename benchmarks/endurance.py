"""Whether 2,000 epochs leave anything behind: JVM heap, Python memory and local disk must be flat."""

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.epoch import small_job
from benchmarks.sides import folder_bytes, memory_bytes, run_side, tree_of
from benchmarks.suites import Row
from penstock.runtime.spark.session import open_session

GROWTH_LIMIT = 1.15
SLACK_BYTES = {
    "heap_bytes": 1 << 20,
    "driver_bytes": 1 << 20,
    "workers_bytes": 1 << 20,
    "disk_bytes": 128 << 10,
}
"""What each figure may grow by unnoticed: pages and blocks, not what an epoch leaves."""
SAMPLES, QUARTERS = 20, 4


def run(*, quick: bool) -> Row:
    epochs = 200 if quick else 2_000
    samples = run_side(watch, epochs)["samples"]
    grown = {name: _growth(name, samples) for name in SLACK_BYTES}
    return {
        "name": f"{epochs} epochs on Spark",
        **{f"{name[:-6]}_growth": round(value, 3) for name, value in grown.items()},
        "samples": samples,
        "target": f"at most {GROWTH_LIMIT} times what the second quarter used",
        "ok": quick or all(value <= GROWTH_LIMIT for value in grown.values()),
    }


def watch(epochs: int) -> Row:
    """Run the epochs and note what is in use, twenty times.

    The JVM collects its garbage when it likes, as in a real job, for what Spark removes only
    then piles up on disk until it does. Just its heap cannot be told without a collection,
    and is measured four times.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["SPARK_LOCAL_DIRS"] = str(root / "spark")
        spark = open_session("local[2,4]", name="benchmark")
        job = small_job(spark, root, epochs=epochs)
        samples: list[dict[str, int]] = []
        for number in range(1, epochs + 1):
            job.run_epoch()
            if number % (epochs // SAMPLES) == 0:
                samples.append({"epoch": number, **_sample(root)})
            if number % (epochs // QUARTERS) == 0:
                samples[-1]["heap_bytes"] = _heap_bytes(spark)
        job.environment.executor.close()
        spark.stop()
    return {"samples": samples}


def _sample(root: Path) -> dict[str, int]:
    disk = folder_bytes(root)
    gc.collect()
    driver = os.getpid()
    workers = [pid for pid in tree_of(driver) if _is_python(pid) and pid != driver]
    return {
        "driver_bytes": memory_bytes(driver),
        "workers_bytes": sum(map(memory_bytes, workers)),
        "disk_bytes": disk,
    }


def _heap_bytes(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 (there is no public way to its heap)
    jvm.java.lang.System.gc()
    beans = jvm.java.lang.management.ManagementFactory
    return int(beans.getMemoryMXBean().getHeapMemoryUsage().getUsed())


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False  # it has ended meanwhile


def _growth(name: str, samples: list[dict[str, int]]) -> float:
    """Return the last quarter's mean over the second's, small absolute changes forgiven."""
    values = [sample[name] for sample in samples if name in sample]
    quarter = len(values) // QUARTERS
    before = sum(values[quarter : 2 * quarter]) / quarter
    after = sum(values[-quarter:]) / quarter
    slack = SLACK_BYTES[name]
    return max(after - slack, 0) / before if after > before else after / before
