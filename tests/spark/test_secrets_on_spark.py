"""Passwords that a job on Spark uses are in no checkpoint, log, plan, event log, page or error."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.core.clock import new_token
from penstock.state.storage.urls import open_store
from scripts.servers.s3 import BUCKET, S3Server
from tests.builders.kafka_topics import TestTopic
from tests.builders.servers import SecureKafka
from tests.builders.spark_home import quick_jvm, spark_home
from tests.builders.spark_session import run_module

WRONG = "wrong-canary-4711"


def contents_of(name: str, data: bytes) -> Iterator[str]:
    """Yield all that a file holds, as text: also what Parquet has compressed."""
    yield data.decode("utf-8", "replace")
    yield data.decode("utf-16-le", "replace")
    if name.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data))
        yield f"{table.schema.metadata} {table.to_pylist()}"


@pytest.mark.spark
@pytest.mark.slow
def test_passwords_are_nowhere(
    secure_kafka: SecureKafka, s3_server: S3Server, tmp_path: Path
) -> None:
    topic = TestTopic.create(secure_kafka.cluster.bootstrap)
    topic.produce([b'{"n": %d}' % n for n in range(20)])
    options: dict[str, Any] = dict(secure_kafka.options("admin"))
    servers, password = options.pop("bootstrap.servers"), options.pop("sasl.password")
    store_options = s3_server.options()
    key = store_options.pop("secret_access_key")
    place = f"s3://{BUCKET}/secrets-{new_token()}"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/events").mkdir()
    (tmp_path / "password").write_text(f"{password}\n")
    given = {
        "servers": servers,
        "kafka_options": options,
        "store_options": store_options,
        "topic": topic.name,
        "bucket": place,
        "folder": str(tmp_path / "run"),
        "password_file": str(tmp_path / "password"),
    }

    done = run_module(
        "tests.spark.secrets_program",
        json.dumps(given),
        folder=tmp_path / "run",
        variables={
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_SUBMIT_OPTS": quick_jvm(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
            "CANARY_OF_KAFKA": password,
            "CANARY_OF_S3": key,
            "WRONG_CANARY": WRONG,
        },
    )

    assert done.returncode == 0, done.stderr[-5_000:]
    assert "FINISHED" in done.stdout or "finished" in done.stdout, done.stdout[-3_000:]
    assert "did not accept the user or the password" in done.stdout
    told = {"printed": done.stdout.encode(), "logged": done.stderr.encode()}
    store = open_store(place, **s3_server.options())
    told |= {info.path: store.read(info.path) or b"" for info in store.list("")}
    found = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    told |= {str(path): path.read_bytes() for path in found}
    # What is looked through is what it should be.
    names = " ".join(told)
    for part in ("checkpoints/", "secretive-table/_delta_log", "ui.txt", "events/"):
        assert part in names
    # The references may be there, and must be, or nothing was tried.
    assert b"CANARY_OF_KAFKA" in told["printed"]
    assert topic.end() == 20
    leaks = [
        (name, word)
        for name, data in told.items()
        for text in contents_of(name, data)
        for word in (password, key, WRONG)
        if word in text
    ]
    assert leaks == []
    for written in (f"{topic.name}-out", f"{topic.name}-too"):
        assert TestTopic(topic.servers, written).end() >= 1
