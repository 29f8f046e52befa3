from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import (
    Epoch,
    Generation,
    JobId,
    OperatorId,
    SavepointName,
    Token,
    checksum_of,
)
from penstock.core.watermark import InputWatermark
from penstock.errors import CorruptStateError, ErrorCode, PenstockError, StateError
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol import codec
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    ObjectRef,
    OperatorEntry,
    Pin,
    PinKind,
    RetentionRecord,
)
from tests.builders.protocol import (
    a_claim,
    a_manifest,
    a_marker,
    a_pin,
    a_record,
    a_ref,
    a_retention,
)

PATH = "job/some/object"
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
numbers = st.integers(1, 9_999_999_999)
instants = st.integers(-(2**63), 2**63 - 1)
tokens = st.from_regex(r"[0-9a-f]{32}", fullmatch=True).map(Token)
jobs = names.map(JobId)
generations = numbers.map(Generation)
refs = st.builds(CheckpointRef, jobs, generations, numbers.map(Epoch))
old_refs = st.builds(CheckpointRef, jobs, generations, st.integers(1, 9).map(Epoch))
young_refs = st.builds(
    CheckpointRef, jobs, generations, st.integers(10, 9_999_999_999).map(Epoch)
)
objects = st.builds(
    ObjectRef, st.text(max_size=40), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)
)
watermarks = st.builds(InputWatermark, st.none() | instants, st.booleans())
entries = st.builds(
    OperatorEntry,
    names.map(OperatorId),
    st.lists(objects, max_size=3).map(tuple),
    st.lists(watermarks, max_size=3).map(tuple),
)
pins = st.builds(
    Pin,
    names.map(SavepointName),
    st.sampled_from(PinKind),
    refs,
    instants,
    st.none() | jobs,
)
RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "claim": st.builds(
        ClaimRecord,
        jobs,
        generations,
        tokens,
        instants,
        numbers.map(Epoch),
        st.none() | refs,
        st.none() | refs,
    ),
    "manifest": st.builds(
        CheckpointManifest,
        young_refs,
        st.none() | old_refs,
        instants,
        instants,
        st.booleans(),
        st.lists(entries, max_size=3).map(tuple),
    ),
    "epoch_record": st.builds(EpochRecord, young_refs, st.none() | old_refs, instants),
    "marker": st.builds(CommitMarker, refs, generations, instants),
    "retention": st.builds(
        RetentionRecord,
        jobs,
        st.integers(0, 2**63),
        tokens,
        instants,
        st.lists(pins, max_size=3).map(tuple),
        numbers.map(Epoch),
        st.lists(refs, max_size=3).map(tuple),
    ),
}
EXAMPLES: dict[str, Any] = {
    "claim": a_claim(),
    "manifest": a_manifest(),
    "epoch_record": a_record(),
    "marker": a_marker(),
    "retention": a_retention(pins=[a_pin("before-upgrade", 3)]),
}


def encoder(kind: str) -> Callable[[Any], bytes]:
    assert kind in EXAMPLES
    return codec.encode


def decoder(kind: str) -> Callable[[bytes, str], object]:
    return partial(codec.decode, type(EXAMPLES[kind]))


def envelope_of(kind: str) -> pb.Envelope:
    return pb.Envelope.FromString(encoder(kind)(EXAMPLES[kind]))


@pytest.mark.parametrize("kind", RECORDS)
@given(data=st.data())
def test_a_record_comes_back_as_it_was_written(kind: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    assert decoder(kind)(encoder(kind)(record), PATH) == record


@pytest.mark.parametrize("kind", EXAMPLES)
def test_equal_records_have_equal_bytes(kind: str) -> None:
    again = decoder(kind)(encoder(kind)(EXAMPLES[kind]), PATH)
    assert encoder(kind)(again) == encoder(kind)(EXAMPLES[kind])


@pytest.mark.parametrize("kind", EXAMPLES)
def test_no_truncated_record_is_accepted(kind: str) -> None:
    whole = encoder(kind)(EXAMPLES[kind])
    for length in range(len(whole)):
        with pytest.raises(CorruptStateError) as caught:
            decoder(kind)(whole[:length], PATH)
        assert caught.value.context["path"] == PATH


@pytest.mark.parametrize("kind", EXAMPLES)
def test_no_flipped_bit_goes_unnoticed(kind: str) -> None:
    whole = encoder(kind)(EXAMPLES[kind])
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            with pytest.raises(PenstockError) as caught:
                decoder(kind)(bytes(damaged), PATH)
            assert isinstance(caught.value, CorruptStateError | StateError)


@pytest.mark.parametrize("kind", EXAMPLES)
@given(garbage=st.binary(max_size=60))
def test_garbage_is_never_taken_for_a_record(kind: str, garbage: bytes) -> None:
    with pytest.raises(CorruptStateError) as caught:
        decoder(kind)(garbage, PATH)
    assert caught.value.code in {ErrorCode.UNDECODABLE, ErrorCode.FOREIGN_OBJECT}
    assert PATH in caught.value.message


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_record_of_a_newer_protocol_asks_for_an_upgrade(kind: str) -> None:
    envelope = envelope_of(kind)
    envelope.protocol_version = codec.PROTOCOL_VERSION + 1
    with pytest.raises(StateError, match=f"{PATH}.*upgrade Penstock") as caught:
        decoder(kind)(envelope.SerializeToString(), PATH)
    assert caught.value.code is ErrorCode.NEWER_PROTOCOL


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_record_without_a_protocol_version_is_not_ours(kind: str) -> None:
    envelope = envelope_of(kind)
    envelope.protocol_version = 0
    with pytest.raises(CorruptStateError) as caught:
        decoder(kind)(envelope.SerializeToString(), PATH)
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("found", EXAMPLES)
def test_a_record_of_one_kind_is_not_read_as_another(kind: str, found: str) -> None:
    if kind == found:
        return
    with pytest.raises(CorruptStateError, match=f"{PATH}.*is a ") as caught:
        decoder(kind)(encoder(found)(EXAMPLES[found]), PATH)
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT


def test_a_body_that_is_no_message_is_reported_although_its_checksum_is_right() -> None:
    # Field 1 of a claim is text; this says that it is five bytes long and then ends.
    garbage = pb.Envelope(
        magic=codec.MAGIC,
        protocol_version=1,
        kind="claim",
        body=b"\x0a\x05ab",
        body_checksum=checksum_of(b"\x0a\x05ab"),
    )
    with pytest.raises(CorruptStateError, match="holds no readable claim") as caught:
        codec.decode(ClaimRecord, garbage.SerializeToString(), PATH)
    assert caught.value.code is ErrorCode.UNDECODABLE


def test_a_name_that_could_leave_the_jobs_prefix_is_corruption() -> None:
    data = codec.seal(pb.ClaimRecord(job_id="../elsewhere", generation=1))
    with pytest.raises(CorruptStateError, match="invalid value") as caught:
        codec.decode(ClaimRecord, data, PATH)
    assert caught.value.__cause__ is not None


def test_a_pin_of_an_unknown_kind_is_corruption() -> None:
    message = pb.RetentionRecord(job_id="job", sequence=1, writer_token="0" * 32)
    message.collected_before = 1
    message.pins.add(name="x", kind=pb.PIN_KIND_MISSING)
    with pytest.raises(CorruptStateError, match="unknown kind 0"):
        codec.decode(RetentionRecord, codec.seal(message), PATH)


@pytest.mark.parametrize("parent", [3, 4])
def test_a_parent_that_is_not_older_is_corruption_so_chains_of_parents_end(
    parent: int,
) -> None:
    record = a_record(3, parent=a_ref(parent))
    with pytest.raises(CorruptStateError, match="came before") as caught:
        codec.decode(EpochRecord, codec.encode(record), PATH)
    assert caught.value.code is ErrorCode.PROTOCOL_VIOLATION
    manifest = a_manifest(3, parent=a_ref(parent))
    with pytest.raises(CorruptStateError, match="came before"):
        codec.decode(CheckpointManifest, codec.encode(manifest), PATH)


def test_an_operator_has_as_many_subtasks_as_metadata_objects() -> None:
    entry = OperatorEntry(OperatorId("op"), (ObjectRef("a", 1, 2), ObjectRef("b", 3, 4)))
    data = codec.encode(replace(a_manifest(1), operators=(entry,)))
    stored = codec.unseal(pb.CheckpointManifest, data, PATH).operators[0]
    assert stored.parallelism == len(stored.subtasks) == 2


def test_fewer_manifests_than_other_records_are_remembered() -> None:
    manifest = codec.encode(a_manifest(1))
    record = codec.encode(a_record(1))
    first_manifest = codec.decode(CheckpointManifest, manifest, "first")
    first_record = codec.decode(EpochRecord, record, "first")
    for number in range(100):
        codec.decode(CheckpointManifest, manifest, str(number))
        codec.decode(EpochRecord, record, str(number))
    assert codec.decode(CheckpointManifest, manifest, "first") is not first_manifest
    assert codec.decode(EpochRecord, record, "first") is first_record
