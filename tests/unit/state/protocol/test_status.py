import pytest

from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol.records import (
    CheckpointManifest,
    CommitMarker,
    Committing,
    EpochRecord,
    Invisible,
    Ready,
    Superseded,
    Unacknowledged,
    derive_status,
)
from tests.builders.protocol import a_manifest, a_marker, a_record, a_ref

REF = a_ref(3)


def test_without_a_manifest_a_checkpoint_does_not_exist() -> None:
    assert derive_status(REF, None, a_record(3), a_marker(3)) == Invisible()


@pytest.mark.parametrize("needs_commit", [True, False])
def test_a_manifest_alone_is_unacknowledged_whether_or_not_it_commits(
    needs_commit: bool,
) -> None:
    manifest = a_manifest(3, needs_commit=needs_commit)
    assert derive_status(REF, manifest, None, None) == Unacknowledged()


def test_the_epoch_record_makes_a_checkpoint_ready_that_has_nothing_to_commit() -> None:
    manifest = a_manifest(3)
    assert derive_status(REF, manifest, a_record(3), None) == Ready(manifest)


@pytest.mark.parametrize("needs_commit", [True, False])
def test_the_record_of_another_checkpoint_supersedes_this_one(needs_commit: bool) -> None:
    manifest = a_manifest(3, needs_commit=needs_commit)
    status = derive_status(REF, manifest, a_record(3, generation=2), None)
    assert status == Superseded(a_ref(3, generation=2))


def test_a_checkpoint_that_commits_is_ready_only_with_its_marker() -> None:
    manifest = a_manifest(3, needs_commit=True)
    record = a_record(3)
    assert derive_status(REF, manifest, record, None) == Committing(manifest, record)
    assert derive_status(REF, manifest, record, a_marker(3)) == Ready(manifest)


def test_any_generation_may_have_written_the_marker() -> None:
    manifest = a_manifest(3, needs_commit=True)
    assert derive_status(REF, manifest, a_record(3), a_marker(3, writer=9)) == Ready(
        manifest
    )


@pytest.mark.parametrize(
    ("manifest", "record", "marker", "what"),
    [
        (a_manifest(4), None, None, "its manifest says"),
        (a_manifest(3), a_record(4), None, "its epoch record is of"),
        (
            a_manifest(3, parent=a_ref(1)),
            a_record(3, parent=a_ref(2)),
            None,
            "differ in parent",
        ),
        (
            a_manifest(3, needs_commit=True),
            a_record(3),
            a_marker(4),
            "its committed marker",
        ),
    ],
)
def test_contradictions_are_corruption(
    manifest: CheckpointManifest,
    record: EpochRecord | None,
    marker: CommitMarker | None,
    what: str,
) -> None:
    with pytest.raises(CorruptStateError, match=what) as caught:
        derive_status(REF, manifest, record, marker)
    assert caught.value.code is ErrorCode.PROTOCOL_VIOLATION
