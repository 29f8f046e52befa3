"""TLS and SASL by every way to name a password, on both sides of a pipeline."""

import logging
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import UserError
from tests.builders.kafka_topics import TestTopic
from tests.builders.servers import SecureKafka

ROWS = [{"n": n} for n in range(5)]


def a_secret(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> Any:
    if way == "env":
        monkeypatch.setenv("KAFKA_PASSWORD", value)
        return pen.secret(env="KAFKA_PASSWORD")
    path = folder / "password"
    path.write_text(f"{value}\n")
    return pen.secret(file=path) if way == "file" else pen.secret(path.read_text().strip)


def options_of(kafka: SecureKafka, mechanism: str, password: Any) -> dict[str, Any]:
    options: dict[str, Any] = dict(kafka.options("admin", mechanism))
    del options["bootstrap.servers"]
    return {**options, "sasl.password": password}


@pytest.mark.parametrize(
    "chosen",
    [("env", "SCRAM-SHA-512"), ("file", "SCRAM-SHA-256"), ("function", "PLAIN")],
    ids=["env", "file", "function"],
)
def test_rows_go_through_a_secure_listener_and_come_back(
    secure_kafka: SecureKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chosen: tuple[str, str],
) -> None:
    way, mechanism = chosen
    caplog.set_level(logging.DEBUG)
    value = secure_kafka.users["admin"]
    (tmp_path / "secret").mkdir()
    password = a_secret(way, tmp_path / "secret", monkeypatch, value)
    topic = TestTopic.create(secure_kafka.cluster.bootstrap)
    there: dict[str, Any] = {
        "servers": secure_kafka.cluster.secure_bootstrap,
        "options": options_of(secure_kafka, mechanism, password),
    }
    forth = pen.Pipeline("forth")
    sink = pen.kafka(topic.name, **there)
    forth.read("rows", pen.list_source(ROWS)).write("out", sink)
    forth.run_in_process(tmp_path / "checkpoints")
    back, out = pen.Pipeline("back"), pen.list_sink(f"secure-{new_token()}")
    source = pen.kafka(topic.name, schema={"n": int}, end="latest", **there)
    back.read("rows", source).write("out", out)
    back.run_in_process(tmp_path / "checkpoints")
    assert out.rows() == ROWS
    shown = [forth.explain(), back.explain(), repr(sink), repr(source), caplog.text]
    kept = [p for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()]
    assert kept
    shown += [path.read_bytes().decode("utf-8", "replace") for path in kept]
    assert not any(value in text for text in shown)


def test_a_password_that_is_written_out_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError, match=r"pen\.secret\(env=") as failure:
        pen.kafka(
            "t", servers="b:1", schema={"n": int}, options={"sasl.password": "hunter2"}
        )
    assert "hunter2" not in str(failure.value)


def test_a_password_that_is_not_there_fails_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    options = {"sasl.password": pen.secret(env="KAFKA_PASSWORD")}
    pipeline = pen.Pipeline("p")
    source = pen.kafka("t", servers="b:1", schema={"n": int}, options=options)
    sink = pen.kafka("u", servers="b:1", options=options)
    pipeline.read("in", source).write("out", sink)
    problems = pipeline.check("memory:").problems
    assert len(problems) == 2
    for step, problem in zip(("in", "out"), problems, strict=True):
        assert f"of step {step!r}" in problem.message
        assert "KAFKA_PASSWORD" in problem.message
