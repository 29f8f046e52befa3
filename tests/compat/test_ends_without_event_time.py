"""Manifests whose ended inputs do not say how far event time came are read, and such jobs go on."""

from penstock.core.ids import Epoch, Generation, JobId, OperatorId
from penstock.core.watermark import MAX_MICROS, EventTime, InputWatermark, advance
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol import codec
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    OperatorEntry,
)

ENDED = EventTime(MAX_MICROS, 40)
STORED = pb.CheckpointManifest(
    ref=pb.CheckpointRef(job_id="job", generation=1, epoch=2),
    created_at_micros=7,
    processing_time_micros=8,
    operators=[
        pb.OperatorEntry(
            operator_id="union",
            input_watermarks=[
                pb.InputWatermark(event_time_micros=MAX_MICROS, producer="a.main"),
                pb.InputWatermark(event_time_micros=30, producer="b.main"),
            ],
        )
    ],
)
INPUTS = (
    InputWatermark(MAX_MICROS, producer="a.main"),
    InputWatermark(30, producer="b.main"),
)


def a_manifest(*inputs: InputWatermark) -> CheckpointManifest:
    ref = CheckpointRef(JobId("job"), Generation(1), Epoch(2))
    entry = OperatorEntry(OperatorId("union"), (), inputs)
    return CheckpointManifest(ref, None, 7, 8, needs_commit=False, operators=(entry,))


def test_an_end_of_an_older_version_does_not_tell_how_far_event_time_came() -> None:
    found = codec.decode(CheckpointManifest, codec.seal(STORED), "job/manifest")
    assert found.operators[0].input_watermarks == INPUTS
    # The source that had ended repeats its end, and tells it then.
    reached = advance(INPUTS, [ENDED, EventTime(MAX_MICROS, 35)]).event_time
    assert reached is not None
    assert reached.reached_micros == 40
    unknown = advance(INPUTS, [EventTime(MAX_MICROS), EventTime(MAX_MICROS, 35)]).event_time
    assert unknown is not None
    assert unknown.reached_micros == 35


def test_inputs_that_go_on_have_the_bytes_they_always_had() -> None:
    assert codec.encode(a_manifest(*INPUTS)) == codec.seal(STORED)


def test_what_an_end_tells_is_read_again() -> None:
    said = a_manifest(InputWatermark(MAX_MICROS, producer="a.main", reached_micros=-1))
    assert codec.decode(CheckpointManifest, codec.encode(said), "job/manifest") == said
