import pytest

from penstock.core.ids import Epoch, Generation
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
from penstock.state.protocol.records import (
    CheckpointStatus,
    ClaimRecord,
    Committing,
    Fenced,
    Invisible,
    Ready,
    Superseded,
    Unacknowledged,
)
from penstock.state.protocol.takeover import (
    Recovered,
    RecoveryFacts,
    claim_generation,
    decide_recovery,
    plan_claim,
    read_restore_requests,
)
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import (
    JOB,
    Sleeper,
    a_claim,
    a_manifest,
    a_record,
    a_ref,
    an_actor,
    creating,
)

CLAIM = a_claim(4)
RECORD = a_record(9, generation=3)
COMMITTING = Committing(a_manifest(9, generation=3, needs_commit=True), RECORD)
READY = Ready(a_manifest(9, generation=3))
OLD = a_ref(5)
REQUEST = a_claim(4, restore=OLD)


def facts(
    *,
    claim: ClaimRecord = CLAIM,
    status: CheckpointStatus | None = READY,
    pending: ClaimRecord | None = None,
    start: CheckpointStatus | None = None,
    fenced: bool = False,
    epochs: bool = True,
    unreplayable: bool = False,
) -> RecoveryFacts:
    return RecoveryFacts(
        claim=claim,
        newest_epoch=Epoch(9) if epochs else None,
        newest=RECORD if epochs else None,
        newest_status=status if epochs else None,
        pending=pending,
        start_status=start,
        fenced=fenced,
        unreplayable=RECORD.ref if unreplayable else None,
    )


def test_a_driver_overtaken_while_it_recovers_is_fenced_whatever_it_saw() -> None:
    assert decide_recovery(facts(fenced=True)) == Fenced(Generation(4))
    assert decide_recovery(facts(fenced=True, status=Invisible())) == Fenced(Generation(4))
    assert decide_recovery(facts(fenced=True, status=COMMITTING)) == Fenced(Generation(4))


def test_a_job_without_epochs_starts_from_nothing() -> None:
    assert decide_recovery(facts(epochs=False)) == Recovered(None, Epoch(1))


def test_a_branch_without_epochs_starts_from_its_origin() -> None:
    claim = a_claim(2, first_epoch=6, origin=OLD)
    decision = decide_recovery(facts(claim=claim, epochs=False, start=READY))
    assert decision == Recovered(ReadyCheckpoint(OLD), Epoch(6))


def test_the_newest_ready_epoch_is_built_on_and_its_number_not_reused() -> None:
    assert decide_recovery(facts()) == Recovered(ReadyCheckpoint(RECORD.ref), Epoch(10))


def test_an_acknowledged_uncommitted_epoch_is_replayed_by_the_recovering_generation() -> (
    None
):
    decision = decide_recovery(facts(status=COMMITTING))
    assert decision == CommitPermit(RECORD, COMMITTING.manifest, Generation(4))


def test_a_restore_builds_on_the_old_epoch_and_takes_the_next_number() -> None:
    decision = decide_recovery(facts(claim=REQUEST, pending=REQUEST, start=READY))
    assert decision == Recovered(ReadyCheckpoint(OLD), Epoch(10), REQUEST)


def test_an_open_commit_is_replayed_before_a_restore_abandons_it() -> None:
    decision = decide_recovery(facts(status=COMMITTING, pending=REQUEST, start=READY))
    assert isinstance(decision, CommitPermit)


def test_a_restore_passes_over_a_commit_that_cannot_be_replayed() -> None:
    decision = decide_recovery(
        facts(status=COMMITTING, pending=REQUEST, start=READY, unreplayable=True)
    )
    assert decision == Recovered(ReadyCheckpoint(OLD), Epoch(10), REQUEST)


def test_without_a_restore_no_commit_is_passed_over() -> None:
    decision = decide_recovery(facts(status=COMMITTING, unreplayable=True))
    assert isinstance(decision, CommitPermit)


def test_a_restore_does_not_mind_that_the_newest_epoch_is_damaged() -> None:
    decision = decide_recovery(facts(status=None, pending=REQUEST, start=READY))
    assert decision == Recovered(ReadyCheckpoint(OLD), Epoch(10), REQUEST)


@pytest.mark.parametrize(
    ("status", "what", "code"),
    [
        (Invisible(), "its manifest is missing", ErrorCode.OBJECT_MISSING),
        (None, "its manifest is missing", ErrorCode.OBJECT_MISSING),
        (Unacknowledged(), "it is unacknowledged", ErrorCode.PROTOCOL_VIOLATION),
        (Superseded(a_ref(9)), "it is superseded", ErrorCode.PROTOCOL_VIOLATION),
        (COMMITTING, "it is committing", ErrorCode.PROTOCOL_VIOLATION),
    ],
)
def test_nothing_is_built_on_what_is_not_ready(
    status: CheckpointStatus | None, what: str, code: ErrorCode
) -> None:
    with pytest.raises(CorruptStateError, match=f"cannot be recovered: {what}") as caught:
        decide_recovery(facts(claim=REQUEST, pending=REQUEST, start=status))
    assert caught.value.code is code


def claim_in(store: MemoryStore, name: str) -> ClaimRecord:
    planned = run_steps(store, plan_claim(an_actor(name)))
    return run_steps(store, claim_generation(an_actor(name), planned))


def test_claims_are_consecutive() -> None:
    store = MemoryStore()
    assert [claim_in(store, name).generation for name in "abc"] == [1, 2, 3]
    assert sorted(store.contents()) == [paths.claim_path(JOB, n) for n in (1, 2, 3)]


def test_the_loser_of_a_claim_takes_the_next_one_and_wins_the_job() -> None:
    store = MemoryStore()
    planned = run_steps(store, plan_claim(an_actor("slow")))
    slow = Sleeper(store, claim_generation(an_actor("slow"), planned))
    slow.sleep_before(creating("claim"))
    assert claim_in(store, "fast").generation == 1
    assert slow.wake().generation == 2


def test_every_claim_repeats_where_a_branch_comes_from() -> None:
    store = MemoryStore()
    first = a_claim(1, first_epoch=6, origin=OLD)
    planned = run_steps(store, plan_claim(an_actor("eager")))
    store.create(paths.claim_path(JOB, 1), codec.encode(first))
    late = run_steps(store, claim_generation(an_actor("eager"), planned))
    later = claim_in(store, "later")
    assert [(claim.first_epoch, claim.origin) for claim in (late, later)] == [(6, OLD)] * 2


def test_a_damaged_claim_still_counts_as_claimed() -> None:
    store = MemoryStore()
    claim_in(store, "first")
    store.put(paths.claim_path(JOB, 2), b"garbage")
    assert claim_in(store, "third").generation == 3


def put_claims(*claims: ClaimRecord) -> MemoryStore:
    return MemoryStore(
        {paths.claim_path(JOB, c.generation): codec.encode(c) for c in claims}
    )


def test_restore_requests_are_found_newest_first_down_to_the_last_honoured_one() -> None:
    one, two = a_claim(1, restore=a_ref(1)), a_claim(2, restore=a_ref(2))
    three, four = a_claim(3), a_claim(4, restore=a_ref(3))
    store = put_claims(one, two, three, four)
    assert run_steps(store, read_restore_requests(four, 1)) == [four, two]
    assert run_steps(store, read_restore_requests(four, 0)) == [four, two, one]
    assert run_steps(store, read_restore_requests(three, 3)) == []


def test_a_gap_in_the_claims_is_corruption() -> None:
    store = put_claims(a_claim(1), a_claim(3))
    with pytest.raises(CorruptStateError, match="claims were deleted by hand"):
        run_steps(store, read_restore_requests(a_claim(3), 0))
