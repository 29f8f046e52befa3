import pytest

from penstock.core.ids import Generation
from penstock.errors import CorruptStateError, ErrorCode, InternalError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import (
    CommitPermit,
    LostEpoch,
    ReadyCheckpoint,
    complete_commit,
    decide_publication,
    publish_checkpoint,
)
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    Fenced,
)
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing import Fault, FaultMode, FaultyStore, Lands
from tests.builders.protocol import (
    OTHER_JOB,
    a_claim,
    a_manifest,
    a_marker,
    a_record,
    a_ref,
)

CLAIM = a_claim(2)
PARENT = ReadyCheckpoint(a_ref(2))
PLAIN = a_manifest(3, generation=2, parent=PARENT.ref)
COMMITTING = a_manifest(3, generation=2, parent=PARENT.ref, needs_commit=True)
RECORD = a_record(3, generation=2, parent=PARENT.ref)
RECORD_PATH = paths.epoch_record_path(PLAIN.ref.job, 3)


def publish(
    store: MemoryStore | FaultyStore, manifest: CheckpointManifest = PLAIN
) -> object:
    return run_steps(store, publish_checkpoint(CLAIM, manifest, PARENT))


def fence(store: MemoryStore) -> None:
    store.create(paths.claim_path(CLAIM.job, 3), codec.encode(a_claim(3)))


def test_publishing_writes_manifest_and_record_and_makes_the_epoch_ready() -> None:
    store = MemoryStore()
    assert publish(store) == ReadyCheckpoint(PLAIN.ref)
    assert store.contents() == {
        paths.manifest_path(PLAIN.ref): codec.encode(PLAIN),
        RECORD_PATH: codec.encode(RECORD),
    }


def test_the_manifest_is_there_before_its_record_and_the_fence_is_read_last() -> None:
    store = FaultyStore(MemoryStore())
    publish(store)
    assert [(call.operation, call.path) for call in store.calls] == [
        ("create", paths.manifest_path(PLAIN.ref)),
        ("create", RECORD_PATH),
        ("size", paths.claim_path(CLAIM.job, 3)),
    ]


def test_an_epoch_that_commits_comes_back_with_a_permit() -> None:
    outcome = publish(MemoryStore(), COMMITTING)
    assert isinstance(outcome, CommitPermit)
    assert outcome == CommitPermit(RECORD, COMMITTING, Generation(2))
    assert outcome.ref == COMMITTING.ref


def test_publishing_the_same_manifest_again_is_recognised_as_ours() -> None:
    store = MemoryStore()
    assert publish(store) == publish(store)


def test_another_manifest_in_the_same_slot_is_refused_and_acknowledges_nothing() -> None:
    store = MemoryStore({paths.manifest_path(PLAIN.ref): codec.encode(COMMITTING)})
    with pytest.raises(InternalError, match="already holds another manifest"):
        publish(store)
    assert store.read(RECORD_PATH) is None


def test_losing_the_epoch_record_names_the_winner() -> None:
    winner = a_record(3, generation=1)
    store = MemoryStore({RECORD_PATH: codec.encode(winner)})
    assert publish(store, COMMITTING) == LostEpoch(winner.ref)
    assert store.read(RECORD_PATH) == codec.encode(winner)


def test_a_replaced_driver_that_wins_its_epoch_gets_no_permit() -> None:
    store = MemoryStore()
    fence(store)
    assert publish(store, COMMITTING) == Fenced(Generation(2), acknowledged=COMMITTING.ref)


def test_a_replaced_driver_that_loses_its_epoch_acknowledged_nothing() -> None:
    store = MemoryStore({RECORD_PATH: codec.encode(a_record(3, generation=3))})
    fence(store)
    assert publish(store) == Fenced(Generation(2), acknowledged=None)


@pytest.mark.parametrize("path", [paths.manifest_path(PLAIN.ref), RECORD_PATH])
@pytest.mark.parametrize("lands", Lands)
def test_a_lost_answer_does_not_change_what_is_published(path: str, lands: Lands) -> None:
    fault = Fault(FaultMode.LOSE_RESPONSE, path=path, lands=lands, late_calls=1)
    store = FaultyStore(MemoryStore(), fault)
    assert publish(store) == ReadyCheckpoint(PLAIN.ref)
    assert store.has_fired


@pytest.mark.parametrize(
    ("claim", "manifest", "parent", "why"),
    [
        (CLAIM, a_manifest(3, generation=1), None, "belongs to job generation 1"),
        (CLAIM, a_manifest(3, generation=2, job=OTHER_JOB), None, "belongs to other"),
        (CLAIM, PLAIN, None, "is not the ready checkpoint None"),
        (
            CLAIM,
            PLAIN,
            ReadyCheckpoint(a_ref(1)),
            "is not the ready checkpoint job epoch 1",
        ),
        (CLAIM, a_manifest(3, generation=2), PARENT, "its parent None is not the ready"),
        (
            CLAIM,
            a_manifest(3, generation=2, parent=a_ref(3)),
            ReadyCheckpoint(a_ref(3)),
            "is not older",
        ),
        (
            a_claim(2, first_epoch=6),
            a_manifest(5, generation=2),
            None,
            "the job's first epoch is 6",
        ),
    ],
)
def test_an_epoch_cannot_be_published_without_proof_that_its_parent_is_ready(
    claim: ClaimRecord,
    manifest: CheckpointManifest,
    parent: ReadyCheckpoint | None,
    why: str,
) -> None:
    store = MemoryStore()
    with pytest.raises(InternalError, match=why) as caught:
        run_steps(store, publish_checkpoint(claim, manifest, parent))
    assert caught.value.code is ErrorCode.PROTOCOL_VIOLATION
    assert store.contents() == {}


@pytest.mark.parametrize(
    ("record", "manifest", "generation"),
    [
        (a_record(3, generation=1), COMMITTING, 2),
        (a_record(3, generation=2, parent=a_ref(1)), COMMITTING, 2),
        (RECORD, PLAIN, 2),
        (RECORD, COMMITTING, 1),
    ],
    ids=[
        "another checkpoint's record",
        "another parent",
        "nothing to commit",
        "older driver",
    ],
)
def test_a_permit_cannot_be_made_from_facts_that_do_not_allow_it(
    record: EpochRecord, manifest: CheckpointManifest, generation: int
) -> None:
    with pytest.raises(InternalError, match="no permit to commit"):
        CommitPermit(record, manifest, Generation(generation))


@pytest.mark.parametrize("needs_commit", [True, False])
@pytest.mark.parametrize("won", [True, False])
@pytest.mark.parametrize("fenced", [True, False])
def test_only_an_unfenced_winner_goes_on(
    needs_commit: bool, won: bool, fenced: bool
) -> None:
    manifest = COMMITTING if needs_commit else PLAIN
    winner = RECORD if won else a_record(3, generation=1)
    outcome = decide_publication(CLAIM, manifest, RECORD, winner, fenced=fenced)
    goes_on = isinstance(outcome, ReadyCheckpoint | CommitPermit)
    assert goes_on == (won and not fenced)
    assert isinstance(outcome, Fenced) == fenced
    assert isinstance(outcome, CommitPermit) == (goes_on and needs_commit)


def permit(generation: int = 2) -> CommitPermit:
    return CommitPermit(RECORD, COMMITTING, Generation(generation))


def marker_in(store: MemoryStore, ref: CheckpointRef) -> object:
    path = paths.marker_path(ref)
    data = store.read(path)
    return None if data is None else codec.decode(CommitMarker, data, path)


def test_completing_a_commit_needs_no_more_than_the_permit() -> None:
    store = MemoryStore()
    ready = run_steps(store, complete_commit(permit(), now_micros=7))
    assert ready == ReadyCheckpoint(COMMITTING.ref)
    assert marker_in(store, COMMITTING.ref) == a_marker(3, generation=2, writer=2)
    assert len(store.contents()) == 1


def test_the_marker_says_which_generation_committed() -> None:
    store = MemoryStore()
    run_steps(store, complete_commit(permit(generation=5), now_micros=7))
    assert marker_in(store, COMMITTING.ref) == a_marker(3, generation=2, writer=5)


@pytest.mark.parametrize("again", [2, 5])
def test_a_commit_may_be_completed_again_also_by_another_generation(again: int) -> None:
    store = MemoryStore()
    run_steps(store, complete_commit(permit(), now_micros=7))
    ready = run_steps(store, complete_commit(permit(again), now_micros=8))
    assert ready == ReadyCheckpoint(COMMITTING.ref)
    assert marker_in(store, COMMITTING.ref) == a_marker(3, generation=2, writer=2)


def test_the_marker_of_another_checkpoint_is_corruption() -> None:
    path = paths.marker_path(COMMITTING.ref)
    store = MemoryStore({path: codec.encode(a_marker(4))})
    with pytest.raises(CorruptStateError, match="committed marker of") as caught:
        run_steps(store, complete_commit(permit(), now_micros=7))
    assert caught.value.code is ErrorCode.PROTOCOL_VIOLATION
