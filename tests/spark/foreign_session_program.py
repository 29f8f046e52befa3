"""A program that has started Spark by itself, as notebooks do, and runs a small job on it."""

import logging
import sys

from pyspark.sql import SparkSession

import penstock as pen


def a_pipeline(name: str) -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    pipeline.read("numbers", pen.impulse(count=5)).write("out", pen.blackhole())
    return pipeline


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    master, folder = sys.argv[1:]
    builder: SparkSession.Builder = SparkSession.builder
    theirs = builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    theirs.conf.set("spark.sql.adaptive.enabled", "true")
    before = theirs.conf.getAll
    for name in ("first", "second"):
        sys.stdout.write(f"{a_pipeline(name).run(folder).phase}\n")
    try:
        a_pipeline("third").run(folder, master="local[7]")
    except pen.PenstockError as error:
        sys.stdout.write(f"{error}\n")
    sys.stdout.write(f"{theirs.range(7).count()} rows\n")
    sys.stdout.write(f"unchanged: {theirs.conf.getAll == before}\n")
    theirs.stop()


if __name__ == "__main__":
    main()
