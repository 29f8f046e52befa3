"""A program that uses passwords in every way on Spark, and shows all that it can about its jobs.

Its argument is a JSON object: brokers, stores, topics, folders. What Spark tells about the jobs,
by its UI, is written to a file; everything else is printed or logged.
"""

import json
import logging
import os
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import PenstockError

PAGES = ("", "environment/", "jobs/", "stages/", "storage/", "executors/", "SQL/")
FACTS = ("environment", "jobs", "stages?details=true", "allexecutors", "sql?details=true")


def say(*things: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, things))}\n")


def options_of(given: dict[str, Any], password: Any) -> dict[str, Any]:
    return {**given["kafka_options"], "sasl.password": password}


def a_pipeline(given: dict[str, Any], name: str, password: Any) -> pen.Pipeline:
    """Return a pipeline from Kafka to Kafka, files and a Delta table in a bucket."""
    path = given["password_file"]

    def from_file() -> str:
        return Path(path).read_text(encoding="utf-8").strip()

    store = {**given["store_options"], "secret_access_key": pen.secret(env="CANARY_OF_S3")}
    pipeline = pen.Pipeline(name, parallelism=2)
    rows = pipeline.read(
        "rows",
        pen.kafka(
            given["topic"],
            servers=given["servers"],
            schema={"n": int},
            end="latest",
            options=options_of(given, password),
        ),
    )
    rows.write(
        "to-kafka",
        pen.kafka(
            f"{given['topic']}-out",
            servers=given["servers"],
            create_topic=True,
            options=options_of(given, pen.secret(file=path)),
        ),
    )
    rows.write(
        "to-kafka-too",
        pen.kafka(
            f"{given['topic']}-too",
            servers=given["servers"],
            create_topic=True,
            delivery="at_least_once",
            options=options_of(given, pen.secret(from_file)),
        ),
    )
    # Options of stores may be written out, and must be hidden then, too.
    literal = {**given["store_options"], "secret_access_key": os.environ["CANARY_OF_S3"]}
    rows.write(
        "to-files", pen.files(f"{given['bucket']}/{name}", "jsonl", store_options=literal)
    )
    rows.write(
        "to-delta", pen.delta(f"{given['bucket']}/{name}-table", store_options=store)
    )
    rows.write(
        "to-delta-too", pen.delta(f"{given['bucket']}/{name}-too", store_options=literal)
    )
    return pipeline


def show(pipeline: pen.Pipeline, given: dict[str, Any], session: SparkSession) -> None:
    """Tell and run a pipeline, and tell what it did or how it failed."""
    store = {**given["store_options"], "secret_access_key": pen.secret(env="CANARY_OF_S3")}
    place = f"{given['bucket']}/checkpoints"
    say(pipeline.explain())
    say(repr(pipeline), repr(pipeline.graph()))
    try:
        say(pipeline.check(place, store_options=store))
        say(pipeline.run(place, session=session, store_options=store, restarts=0))
    except PenstockError as error:
        say(error, error.context)
        traceback.print_exc()


def main() -> None:
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    folder = Path(given["folder"])
    builder: SparkSession.Builder = SparkSession.builder
    session = (
        builder.master("local[2,4]")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", str(folder / "events"))
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.maxPlanStringLength", str(1 << 24))
        .config("spark.sql.debug.maxToStringFields", "1000")
        .getOrCreate()
    )
    show(a_pipeline(given, "secretive", pen.secret(env="CANARY_OF_KAFKA")), given, session)
    wrong = a_pipeline(given, "refused", pen.secret(env="WRONG_CANARY"))
    show(wrong, given, session)
    context = session.sparkContext
    ui = str(context.uiWebUrl)
    # The host's own name need not lead here.
    ui = f"http://localhost:{ui.rpartition(':')[2]}"
    facts = f"{ui}/api/v1/applications/{context.applicationId}"
    pages = [f"{ui}/{page}" for page in PAGES] + [f"{facts}/{fact}" for fact in FACTS]
    with (folder / "ui.txt").open("wb") as file:
        for page in pages:
            with urllib.request.urlopen(page, timeout=60) as answer:  # noqa: S310 (Spark's own)
                file.write(answer.read())
    session.stop()


if __name__ == "__main__":
    main()
