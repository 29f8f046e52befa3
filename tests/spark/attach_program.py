"""Attaches a query to a job, and dies in the midst of a commit or waits to be interrupted."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import penstock as pen
from tests.builders.spark_session import orders, say

SCHEMA = "number BIGINT"


def open_stream(session: SparkSession, folder: Path) -> DataFrame:
    """Return the numbers below a folder, one file per batch."""
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "incoming"))


def a_pipeline(function: Any, schema: Any) -> pen.Pipeline:
    """Return a pipeline that hands batches to a function."""
    pipeline = pen.Pipeline("attach-killed", parallelism=2)
    read = pipeline.read("numbers", pen.attached(schema=schema))
    read.write("out", pen.for_each_epoch(function))
    return pipeline


def attach(
    pipeline: pen.Pipeline, stream: DataFrame, folder: Path, *, ends: bool = True
) -> pen.JobStatus:
    """Run until all that is there was read, or for ever."""
    job = pipeline.attach(
        stream,
        checkpoint=str(folder / "checkpoints"),
        query_checkpoint=str(folder / "query"),
        query_trigger={"availableNow": True} if ends else None,
    )
    return job.wait()


def write_epoch(frame: DataFrame, epoch: int, folder: Path) -> None:
    """Write the rows of an epoch, the same way however often it is called."""
    rows = sorted(row["number"] for row in frame.collect())
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / f"{epoch}.json").write_text(json.dumps(rows))


def main(folder: Path, *, dies: bool) -> None:
    """Read batches; maybe die when the second one is written and not yet noted as committed."""
    from penstock.runtime.spark.session import open_session

    session = open_session("local[2,4]", name="penstock-tests")

    def take(frame: DataFrame, epoch: int) -> None:
        write_epoch(frame, epoch, folder)
        say("epoch", number=epoch)
        if dies and len(list((folder / "out").iterdir())) == 2:
            os.killpg(0, signal.SIGKILL)

    stream = open_stream(session, folder)
    status = attach(a_pipeline(take, stream.schema), stream, folder, ends=dies)
    say("ended", phase=status.phase)


if __name__ == "__main__":
    order = next(orders())
    main(Path(order["folder"]), dies=order["dies"])
