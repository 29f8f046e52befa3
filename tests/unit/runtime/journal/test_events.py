"""Events are JSON of a bounded size, and a reader names what it cannot read."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock.errors import CorruptStateError, StateError
from penstock.runtime.driver.decide import JobPhase, JobStatus, OperatorStatus
from penstock.runtime.driver.progress import EpochPhase, EpochProgress, RowSample
from penstock.runtime.journal.events import (
    MOST_BYTES,
    Answer,
    DriverPlace,
    EpochSums,
    Event,
    EventKind,
    FailureSeen,
    cut_text,
    decode_event,
    encode_event,
)
from penstock.runtime.plan.executor import KeySample

PLACE = DriverPlace("host", 7, "0.1", 1_000)
STATUS = JobStatus(
    "shop",
    JobPhase.RUNNING,
    generation=3,
    epoch=12,
    last=EpochProgress(12, True, 5, 6, 7, 8, 9, 0),
    operators=(OperatorStatus("count", "process", 2, 40, {"main": 4}, {"hits": 1}),),
)
EVENT = Event(
    job="shop",
    generation=3,
    number=9,
    at_micros=5_000,
    since_micros=2_000,
    kind=EventKind.STATUS,
    status=STATUS,
    driver=PLACE,
    epochs=EpochSums(2, 1, phases={EpochPhase.RUN: 40}),
    rates={"count": 2.5},
    rows_by_subtask={"count": (30, 10)},
    keys=(KeySample("read", "count", 40, {'"ada"': 30}),),
    samples=(RowSample("count", "late", ('{"n":1}',)),),
    failures=(FailureSeen("ValueError", "no", "trace", 2, 1, 2, True),),
    answers=(Answer("1-a", "stop", True, "stopped"),),
)


def test_an_event_comes_back_as_it_was() -> None:
    assert decode_event(encode_event(EVENT), "e") == EVENT


def test_an_event_is_json_that_names_its_format_and_what_people_look_for() -> None:
    found = json.loads(encode_event(EVENT))
    assert found["format"] == 1
    assert found["status"]["phase"] == "running"
    assert found["epochs"]["phases"] == {"run": 40}
    assert found["keys"][0]["rows_by_key"] == {'"ada"': 30}


def test_what_the_event_says_itself_is_not_said_again_by_the_last_epoch() -> None:
    last = EpochProgress(12, True, 5, 6, 7, 8, 9, 0, keys=EVENT.keys, samples=EVENT.samples)
    told = replace(EVENT, status=replace(STATUS, last=last))
    assert json.loads(encode_event(told))["status"]["last"]["keys"] == []


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    later = {**json.loads(encode_event(EVENT)), "colour": "green"}
    assert decode_event(json.dumps(later).encode(), "e") == EVENT


def test_a_newer_format_is_refused_with_a_sentence() -> None:
    newer = msgspec.json.encode(replace(EVENT, format=2))
    with pytest.raises(StateError, match=r"'e' has format 2, .* upgrade Penstock"):
        decode_event(newer, "e")


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\x00"])
def test_a_damaged_event_is_named(damaged: bytes) -> None:
    with pytest.raises(CorruptStateError, match="'e' cannot be read"):
        decode_event(damaged, "e")


def many(count: int, **fields: Any) -> tuple[OperatorStatus, ...]:
    return tuple(
        replace(STATUS.operators[0], operator=f"step-{i:05}", **fields)
        for i in range(count)
    )


def test_an_event_that_is_too_large_leaves_samples_out_first() -> None:
    large = replace(EVENT, samples=(RowSample("count", "bad", ("x" * MOST_BYTES,)),))
    found = decode_event(encode_event(large), "e")
    assert found.samples == ()
    assert found.keys == EVENT.keys


def test_a_graph_of_thousands_of_steps_still_says_how_the_job_is() -> None:
    large = replace(EVENT, status=replace(STATUS, operators=many(5_000)))
    encoded = encode_event(large)
    found = decode_event(encoded, "e")
    assert len(encoded) <= MOST_BYTES
    assert found.status.operators == ()
    assert (found.status.epoch, found.answers) == (12, EVENT.answers)


def test_counters_go_before_operators() -> None:
    counted = many(300, counters={"long name of a counter " * 40: 1})
    found = decode_event(
        encode_event(replace(EVENT, status=replace(STATUS, operators=counted))), "e"
    )
    assert len(found.status.operators) == 300
    assert found.status.operators[0].counters == {}


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    cut = cut_text("a" * 10_000 + "b" * 10_000)
    assert len(cut) < 9_000
    assert (cut[0], cut[-1]) == ("a", "b")
    assert cut_text("short") == "short"
