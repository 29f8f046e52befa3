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
SLACK_BYTES = 1 << 20
SAMPLES = 20
FIGURES = ("heap_bytes", "driver_bytes", "workers_bytes", "disk_bytes")


def run(*, quick: bool) -> Row:
    epochs = 200 if quick else 2_000
    samples = run_side(watch, epochs)["samples"]
    grown = {name: _growth([sample[name] for sample in samples]) for name in FIGURES}
    return {
        "name": f"{epochs} epochs on Spark",
        **{f"{name[:-6]}_growth": round(value, 3) for name, value in grown.items()},
        "samples": samples,
        "target": f"at most {GROWTH_LIMIT} times what the second quarter used",
        "ok": quick or all(value <= GROWTH_LIMIT for value in grown.values()),
    }


def watch(epochs: int) -> Row:
    """Run the epochs and note what is in use, twenty times."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["SPARK_LOCAL_DIRS"] = str(root / "spark")
        spark = open_session("local[2,4]", name="benchmark")
        job = small_job(spark, root, epochs=epochs)
        samples = []
        for number in range(1, epochs + 1):
            job.run_epoch()
            if number % (epochs // SAMPLES) == 0:
                samples.append({"epoch": number, **_sample(spark, root)})
        job.environment.executor.close()
        spark.stop()
    return {"samples": samples}


def _sample(spark: SparkSession, root: Path) -> dict[str, int]:
    gc.collect()
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 (there is no public way to its heap)
    jvm.java.lang.System.gc()
    beans = jvm.java.lang.management.ManagementFactory
    heap = int(beans.getMemoryMXBean().getHeapMemoryUsage().getUsed())
    driver = os.getpid()
    workers = [pid for pid in tree_of(driver) if _is_python(pid) and pid != driver]
    return {
        "heap_bytes": heap,
        "driver_bytes": memory_bytes(driver),
        "workers_bytes": sum(map(memory_bytes, workers)),
        "disk_bytes": folder_bytes(root),
    }


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False  # it has ended meanwhile


def _growth(values: list[int]) -> float:
    """Return the last quarter's mean over the second's, small absolute changes forgiven."""
    quarter = len(values) // 4
    before = sum(values[quarter : 2 * quarter]) / quarter
    after = sum(values[-quarter:]) / quarter
    return max(after - SLACK_BYTES, 0) / before if after > before else after / before
