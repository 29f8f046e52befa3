"""Tests what markers say about committed epochs."""

import pytest

from penstock.connectors.kafka.markers import (
    encode_marker,
    last_epoch_of,
    marker_place,
    marker_topic_of,
    transactional_id,
)
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import CorruptStateError

TASK = TaskInfo(JobId("sales"), OperatorId("out"), Subtask(0, 2))


def test_last_epoch_is_the_highest_of_this_key() -> None:
    place = marker_place("markers", TASK, "token", 3)
    marked = [
        (place.key, encode_marker(4, "out")),
        (place.key, encode_marker(7, "out")),
        (b"another", encode_marker(9, "out")),
        (place.key, None),
    ]
    assert last_epoch_of(marked, place.key) == 7
    assert last_epoch_of([], place.key) == 0


def test_record_that_is_no_marker_is_refused() -> None:
    with pytest.raises(CorruptStateError, match="no marker"):
        last_epoch_of([(b"k", b"{}")], b"k")


def test_jobs_sinks_and_shards_have_ids_and_markers_of_their_own() -> None:
    other_job = TaskInfo(JobId("sales-2"), TASK.operator, TASK.subtask)
    other_sink = TaskInfo(TASK.job, OperatorId("out-2"), TASK.subtask)
    of = [
        (TASK, "a", 0),
        (TASK, "a", 1),
        (TASK, "b", 0),
        (other_job, "a", 0),
        (other_sink, "a", 0),
    ]
    assert len({transactional_id(*each) for each in of}) == len(of)
    assert len({marker_place("m", *each).key for each in of}) == len(of)


def test_marker_topic_is_a_name_that_kafka_takes() -> None:
    long = TaskInfo(JobId("j" * 128), OperatorId("o" * 128), Subtask(0, 1))
    assert len(marker_topic_of(long)) <= 249
    assert marker_topic_of(TASK) == "penstock.markers.sales.out"
