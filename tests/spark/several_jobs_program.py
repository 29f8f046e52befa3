"""A program that runs jobs side by side, then on a context of its own, then without one again."""

import sys
from concurrent.futures import ThreadPoolExecutor

from pyspark import SparkContext
from pyspark.sql import SparkSession

import penstock as pen

FOLDER = sys.argv[1]


def run(name: str) -> None:
    """Count a few numbers on whatever Spark there is."""
    pipeline = pen.Pipeline(name)
    pipeline.read("numbers", pen.impulse(count=5)).write("out", pen.blackhole())
    sys.stdout.write(f"{name} {pipeline.run(FOLDER).phase}\n")


def main() -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, ["left", "right"]))
    sys.stdout.write(f"left running: {SparkContext._active_spark_context is not None}\n")
    context = SparkContext("local[2]", "theirs")
    run("on-theirs")
    sys.stdout.write(f"{context.parallelize([1, 2, 3]).count()} rows\n")
    SparkSession.builder.getOrCreate()
    context.stop()  # the session stays, and is dead
    run("after-theirs")


if __name__ == "__main__":
    main()
