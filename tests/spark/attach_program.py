"""Attaches a query to a job and dies in the midst of a commit, after its function has run."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import penstock as ps

SCHEMA = "number BIGINT"


def open_stream(session: SparkSession, folder: Path) -> DataFrame:
    """Return the numbers below a folder, one file per batch."""
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "incoming"))


def a_pipeline(function: Any, schema: Any) -> ps.Pipeline:
    """Return a pipeline that hands batches to a function."""
    pipeline = ps.Pipeline("attach-killed", parallelism=2)
    read = pipeline.read("numbers", ps.attached(schema=schema))
    read.write("out", ps.for_each_epoch(function))
    return pipeline


def attach(pipeline: ps.Pipeline, stream: DataFrame, folder: Path) -> ps.JobStatus:
    """Run until all that is there was read."""
    job = pipeline.attach(
        stream,
        checkpoint=str(folder / "checkpoints"),
        query_checkpoint=str(folder / "query"),
        trigger={"availableNow": True},
    )
    return job.await_termination()


def write_epoch(frame: DataFrame, epoch: int, folder: Path) -> None:
    """Write the rows of an epoch, the same way however often it is called."""
    rows = sorted(row["number"] for row in frame.collect())
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / f"{epoch}.json").write_text(json.dumps(rows))


def main(folder: Path) -> None:
    """Read two batches; die when the second one is written and not yet noted as committed."""
    from penstock.runtime.spark.session import open_session

    session = open_session("local[2,4]", name="penstock-tests")

    def die_in_second(frame: DataFrame, epoch: int) -> None:
        write_epoch(frame, epoch, folder)
        if len(list((folder / "out").iterdir())) == 2:
            os.killpg(0, signal.SIGKILL)

    stream = open_stream(session, folder)
    attach(a_pipeline(die_in_second, stream.schema), stream, folder)


if __name__ == "__main__":
    main(Path(json.loads(sys.stdin.readline())["folder"]))
