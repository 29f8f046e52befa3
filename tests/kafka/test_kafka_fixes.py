"""Tests that a job whose topic was lost, or records of it, goes on as its own error says."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.errors import PenstockError
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic, wait_until
from tests.builders.servers import a_topic

BEGIN_ANEW = "give the step another name, so that it begins anew where start= says"
ONCE = "pass allow_dropped_state=True once"


def numbered(first: int, stop: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in range(first, stop)]


class FollowingJob:
    """A job that follows a topic; checkpoints and output last from one start to the next."""

    def __init__(self, topic: TestTopic, folder: Path) -> None:
        self._topic, self._folder = topic, folder
        self._out = pen.list_sink(a_topic("list"))

    def read_until(self, wanted: list[int], step: str = "in", **options: Any) -> None:
        """Start the job, and stop it when its output is what is wanted."""
        allowed = options.pop("allow_dropped_state", False)
        pipeline = self._pipeline(step, **options)
        with pipeline.start_in_process(self._folder, allow_dropped_state=allowed) as job:
            wait_until(lambda: self._numbers() == wanted or not job.is_running)
        assert self._numbers() == wanted

    def fail(self, step: str = "in", **options: Any) -> PenstockError:
        """Start the job, and return why it stops."""
        with pytest.raises(PenstockError) as failure:
            self._pipeline(step, **options).run_in_process(self._folder)
        return failure.value

    def _pipeline(self, step: str, **options: Any) -> pen.Pipeline:
        servers, pipeline = self._topic.servers, pen.Pipeline("follows")
        source = pen.kafka(self._topic.name, servers=servers, schema={"n": int}, **options)
        pipeline.read(step, source).write("out", self._out)
        return pipeline

    def _numbers(self) -> list[int]:
        return sorted(row["n"] for row in self._out.rows())


@pytest.fixture
def topic(kafka: KafkaCluster) -> TestTopic:
    return TestTopic.create(kafka.bootstrap)


@pytest.fixture
def job(topic: TestTopic, tmp_path: Path) -> FollowingJob:
    """A job that has read three records, and stands still."""
    topic.produce(numbered(0, 3))
    job = FollowingJob(topic, tmp_path)
    job.read_until([0, 1, 2])
    return job


@pytest.mark.parametrize("is_made_again", [False, True], ids=["deleted", "made-again"])
def test_a_job_whose_topic_is_another_one_reads_it_under_another_name(
    topic: TestTopic, job: FollowingJob, *, is_made_again: bool
) -> None:
    if is_made_again:
        topic.make_again()
        topic.produce(numbered(10, 12))
    else:
        topic.delete()
    failure = job.fail()
    assert failure.code == "input-changed"
    assert BEGIN_ANEW in failure.message
    assert ONCE in failure.message
    if not is_made_again:
        assert "Create it again" in failure.message
        topic.make()
        topic.produce(numbered(10, 12))
    # The positions of the old one are not dropped without a word.
    assert "allow_dropped_state=True" in job.fail("anew").message
    job.read_until([0, 1, 2, 10, 11], "anew", allow_dropped_state=True)
    topic.produce(numbered(12, 13))
    job.read_until([0, 1, 2, 10, 11, 12], "anew")


def test_a_job_that_lost_records_goes_on_behind_them(
    topic: TestTopic, job: FollowingJob
) -> None:
    topic.produce(numbered(3, 10))
    topic.remove_before(5)
    failure = job.fail()
    assert failure.code == "input-lost"
    assert "To go on without them, pass on_lost='continue'" in failure.message
    job.read_until([0, 1, 2, 5, 6, 7, 8, 9], on_lost="continue")
    topic.produce(numbered(10, 11))
    job.read_until([0, 1, 2, *range(5, 11)])


def test_a_job_that_lost_records_begins_anew_under_another_name(
    topic: TestTopic, job: FollowingJob
) -> None:
    topic.produce(numbered(3, 10))
    topic.remove_before(2)
    job.read_until([*range(10)])
    topic.produce(numbered(10, 15))
    topic.remove_before(12)
    failure = job.fail()
    assert BEGIN_ANEW in failure.message
    assert ONCE in failure.message
    job.read_until([*range(10), 12, 13, 14], "anew", allow_dropped_state=True)
