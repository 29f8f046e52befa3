"""A program on Spark Connect: a server beside it runs the job, no context is in this process."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from tests.spark.counting_job import CountingJob


def main() -> None:
    master, folder = sys.argv[1:]
    builder: SparkSession.Builder = SparkSession.builder
    session = builder.remote(master).config("spark.ui.enabled", "false").getOrCreate()
    job = CountingJob(Path(folder))
    sys.stdout.write(f"{type(session).__module__}\n{job.run(session=session).phase}\n")
    job.check()
    stream = session.readStream.format("rate").load()
    pipeline = pen.Pipeline("attached")
    pipeline.read("rows", pen.attached(schema=stream.schema)).write("out", pen.blackhole())
    try:
        pipeline.attach(stream, checkpoint=folder, query_checkpoint=f"{folder}/query")
    except pen.PenstockError as error:
        sys.stdout.write(f"{error}\n")
    session.stop()


if __name__ == "__main__":
    main()
