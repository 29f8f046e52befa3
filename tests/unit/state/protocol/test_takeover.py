import pytest

from penstock.core.ids import Epoch, Generation, JobId, SavepointName
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import (
    CommitPermit,
    LostEpoch,
    ReadyCheckpoint,
)
from penstock.state.protocol.records import CheckpointRef, Fenced
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import (
    Recovered,
    TakenOver,
    release_honoured_restores,
    resume,
    take_over,
)
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import JOB, Sleeper, a_ref, an_actor, asking, creating
from tests.builders.small_driver import (
    FencedOffError,
    Sink,
    SmallDriver,
    a_driver,
    checkpoints_in,
)


def taken_over(store: MemoryStore, restore: CheckpointRef | None = None) -> TakenOver:
    outcome = checkpoints_in(store).take_over(restore=restore)
    assert isinstance(outcome, TakenOver)
    return outcome


def pins(store: MemoryStore) -> list[int]:
    return [pin.ref.epoch for pin in checkpoints_in(store).pins()]


def lineage(store: MemoryStore) -> dict[int, int | None]:
    """Return the epoch each epoch was built on."""
    return {
        status.record.ref.epoch: getattr(status.record.parent, "epoch", None)
        for status in checkpoints_in(store).epochs()
    }


def test_the_first_driver_of_a_job_claims_generation_one_and_starts_from_nothing() -> None:
    store = MemoryStore()
    taken = taken_over(store)
    assert taken.claim.generation == 1
    assert taken.decision == Recovered(None, Epoch(1))
    assert list(store.contents()) == [paths.claim_path(JOB, 1)]


def test_a_successor_goes_on_from_the_newest_ready_epoch() -> None:
    store = MemoryStore()
    newest = a_driver(store, epochs=3).acknowledged[-1]
    taken = taken_over(store)
    assert taken.claim.generation == 2
    assert taken.decision == Recovered(ReadyCheckpoint(newest), Epoch(4))


def test_generations_that_published_nothing_are_passed_over() -> None:
    store = MemoryStore()
    newest = a_driver(store, epochs=1).acknowledged[-1]
    for _ in range(5):
        a_driver(store)
    assert taken_over(store).decision == Recovered(ReadyCheckpoint(newest), Epoch(2))


@pytest.mark.parametrize("needs_commit", [True, False])
def test_a_manifest_without_its_record_is_ignored_by_the_successor(
    needs_commit: bool,
) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1, needs_commit=needs_commit)
    manifest = driver.write_epoch()
    store.create(paths.manifest_path(manifest.ref), codec.encode(manifest))
    taken = taken_over(store)
    assert taken.decision == Recovered(ReadyCheckpoint(driver.acknowledged[0]), Epoch(2))
    assert store.read(paths.epoch_record_path(JOB, 2)) is None


def test_an_open_commit_is_replayed_before_anything_builds_on_it() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1)
    outcome = driver.publish(driver.write_epoch())
    assert isinstance(outcome, CommitPermit)
    taken = taken_over(store)
    assert isinstance(taken.decision, CommitPermit)
    assert taken.decision.ref == outcome.ref
    assert taken.decision.generation == 2
    checkpoints_in(store).complete_commit(taken.decision)
    again = checkpoints_in(store).resume(taken.claim)
    assert again == TakenOver(
        taken.claim, Recovered(ReadyCheckpoint(outcome.ref), Epoch(3))
    )


def two_drivers_for_one_epoch(
    *, needs_commit: bool
) -> tuple[MemoryStore, SmallDriver, Sink]:
    """An old driver wins the epoch its successor has planned too; return the successor."""
    store, sink = MemoryStore(), Sink()
    old = a_driver(store, epochs=1, needs_commit=needs_commit, sink=sink)
    manifest = old.write_epoch()
    new = a_driver(store, needs_commit=needs_commit, sink=sink)
    assert isinstance(old.publish(manifest), Fenced)
    outcome = new.publish(new.write_epoch())
    assert outcome == LostEpoch(manifest.ref)
    return store, new, sink


def test_the_winner_of_a_lost_epoch_is_adopted() -> None:
    _, new, _ = two_drivers_for_one_epoch(needs_commit=False)
    new.start()
    assert new.base == ReadyCheckpoint(a_ref(2, generation=1))
    assert new.claim.generation == 3
    assert new.run_epoch() == a_ref(3, generation=3)


def test_the_commit_of_an_epoch_won_by_a_replaced_driver_is_replayed() -> None:
    _, new, sink = two_drivers_for_one_epoch(needs_commit=True)
    assert sink.commits == [(a_ref(1), 1)]
    new.start()
    assert sink.commits == [(a_ref(1), 1), (a_ref(2), 3)]


def test_a_driver_overtaken_while_it_takes_over_is_fenced_and_writes_nothing_more() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    slow = Sleeper(store, take_over(an_actor("slow")))
    slow.sleep_before(creating("claim"))
    slow.sleep_before(asking("epochs"))
    taken_over(store)
    before = store.contents()
    assert slow.wake() == Fenced(Generation(2))
    assert store.contents() == before


def test_a_replaced_driver_publishes_at_most_what_it_had_begun_and_then_stops() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=1)
    a_driver(store, epochs=1)
    with pytest.raises(FencedOffError):
        old.run_epoch()
    assert [ref.generation for ref in (s.record.ref for s in old.checkpoints.epochs())] == [
        *(2, 1),
    ]


def test_a_restore_goes_on_from_the_old_epoch_under_a_new_number() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=4).acknowledged[1]
    driver = a_driver(store, restore=old)
    assert (driver.base, driver.next_epoch) == (ReadyCheckpoint(old), 5)
    driver.run_epochs(2)
    assert lineage(store) == {6: 5, 5: 2, 4: 3, 3: 2, 2: 1, 1: None}


def test_a_restore_stays_in_force_until_an_epoch_is_published() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    driver = a_driver(store, restore=old)
    for _ in range(3):  # each dies before it can publish
        driver = a_driver(store)
        assert driver.base == ReadyCheckpoint(old)
    driver.run_epoch()
    assert a_driver(store).base == ReadyCheckpoint(driver.acknowledged[0])


def test_an_epoch_published_by_an_older_driver_does_not_undo_a_restore() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=2)
    manifest = old.write_epoch()
    restoring = a_driver(store, restore=old.acknowledged[0])
    assert isinstance(old.publish(manifest), Fenced)
    assert isinstance(restoring.publish(restoring.write_epoch()), LostEpoch)
    restoring.start()
    assert restoring.base == ReadyCheckpoint(old.acknowledged[0])
    assert restoring.next_epoch == 4


def test_of_two_restores_the_later_one_counts() -> None:
    store = MemoryStore()
    first, second, _ = a_driver(store, epochs=3).acknowledged
    a_driver(store, restore=first)
    a_driver(store, restore=second)
    assert a_driver(store).base == ReadyCheckpoint(second)


def test_a_restore_is_pinned_before_its_claim_and_until_it_is_honoured() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    restoring = Sleeper(store, take_over(an_actor("restoring"), restore=old))
    restoring.sleep_before(creating("claim"))
    assert pins(store) == [1]
    restoring.wake()
    assert pins(store) == [1]
    a_driver(store, epochs=1)
    assert pins(store) == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_honoured_restore_lets_its_epoch_go_also_if_it_was_the_newest(
    which: int,
) -> None:
    store = MemoryStore()
    ref = a_driver(store, epochs=3).acknowledged[which]
    a_driver(store, restore=ref, epochs=1)
    assert pins(store) == []


def test_the_successor_lets_go_what_a_dead_driver_restored() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    driver = a_driver(store, restore=old)
    driver.checkpoints.publish(driver.claim, driver.write_epoch(), driver.base)
    assert pins(store) == [1]
    a_driver(store)
    assert pins(store) == []


def test_a_restore_whose_driver_won_although_overtaken_lets_go_too() -> None:
    store = MemoryStore()
    first, second, _ = a_driver(store, epochs=3).acknowledged
    overtaken = a_driver(store, restore=first)
    manifest = overtaken.write_epoch()
    a_driver(store, restore=second)
    assert isinstance(overtaken.publish(manifest), Fenced)
    assert a_driver(store).base == ReadyCheckpoint(second)
    assert pins(store) == [2]
    a_driver(store, epochs=1)
    assert pins(store) == []


def test_a_sleeper_does_not_pin_again_what_its_successor_has_honoured() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    a_driver(store, restore=old)
    sleeper = Sleeper(store, take_over(an_actor("sleeper")))
    sleeper.sleep_before(creating("claim"))
    sleeper.sleep_before(asking("retention"))
    a_driver(store, epochs=1)
    assert sleeper.wake() == Fenced(Generation(3))
    assert pins(store) == []


def test_a_restore_pin_removed_by_hand_is_made_again() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    a_driver(store, restore=old)
    unpin_everything(store)
    a_driver(store)
    assert pins(store) == [1]


def test_a_restore_whose_epoch_was_given_away_by_hand_says_so() -> None:
    store = MemoryStore()
    first = a_driver(store, epochs=5, keep_epochs=1)
    restoring = a_driver(store, restore=first.acknowledged[0])
    restoring.keep_epochs = 1
    restoring.collect()
    unpin_everything(store)
    with pytest.raises(StateError, match="no longer kept") as caught:
        a_driver(store)
    assert "asked to restore it and its pin was removed" in caught.value.__notes__[0]


def unpin_everything(store: MemoryStore) -> None:
    checkpoints = checkpoints_in(store)
    for pin in checkpoints.pins():
        checkpoints.unpin(pin.name)


def refuse(store: MemoryStore, restore: CheckpointRef, match: str) -> None:
    before = store.contents()
    with pytest.raises(StateError, match=match) as caught:
        checkpoints_in(store).take_over(restore=restore)
    assert caught.value.code is ErrorCode.NOT_RESTORABLE
    assert store.contents() == before


def test_what_cannot_be_restored_is_refused_before_anything_is_claimed() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    outcome = driver.publish(driver.write_epoch())
    assert isinstance(outcome, CommitPermit)
    refuse(store, a_ref(9), "epoch 9 of job is invisible")
    refuse(store, a_ref(1, generation=7), "epoch 1 of job is invisible")
    refuse(store, outcome.ref, "epoch 3 of job is committing")
    refuse(store, a_ref(1, job=JobId("elsewhere")), "is not an epoch of job.*make a branch")


def test_an_epoch_given_up_between_plan_and_restore_is_refused() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3, keep_epochs=1)
    plan = driver.checkpoints.plan_restore(Epochs(Epoch(1)))
    checkpoints_in(store).pin(SavepointName("other"), Epochs(Epoch(2)))
    restoring = Sleeper(store, take_over(an_actor("slow"), restore=plan.ref))
    restoring.sleep_before(creating("retention"))
    driver.collect()
    with pytest.raises(StateError, match="no longer kept"):
        restoring.wake()
    assert store.read(paths.claim_path(JOB, 2)) is None


def test_a_driver_that_cannot_read_the_newest_epoch_fences_nobody() -> None:
    store = MemoryStore()
    running = a_driver(store, epochs=2)
    store.put(paths.epoch_record_path(JOB, 2), b"garbage")
    before = store.contents()
    with pytest.raises(CorruptStateError):
        checkpoints_in(store).take_over()
    assert store.contents() == before
    running.run_epoch()


def test_what_is_collected_while_a_driver_looks_does_not_stop_it() -> None:
    store = MemoryStore()
    running = a_driver(store, epochs=2, keep_epochs=1)
    slow = Sleeper(store, take_over(an_actor("slow")))
    slow.sleep_before(asking("/0000000002/manifest.pb"))
    running.run_epochs(2)
    running.collect()
    taken = slow.wake()
    assert isinstance(taken, TakenOver)
    assert taken.decision == Recovered(ReadyCheckpoint(running.acknowledged[-1]), Epoch(5))


def damage_newest(store: MemoryStore, part: str) -> None:
    (path,) = [path for path in store.contents() if part in path]
    store.put(path, b"garbage")


@pytest.mark.parametrize(
    "part",
    ["epochs/0000000003", "0000000003/manifest.pb", "0000000003/committed"],
)
def test_older_epochs_stay_restorable_when_the_newest_is_damaged(part: str) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    damage_newest(store, part)
    with pytest.raises(CorruptStateError):
        a_driver(store)
    plan = driver.checkpoints.plan_restore(Epochs(Epoch(2)))
    restored = a_driver(store, restore=plan.ref, epochs=1)
    assert restored.acknowledged == [a_ref(4, generation=2)]
    assert a_driver(store).base == ReadyCheckpoint(a_ref(4, generation=2))


def test_a_restore_asked_for_before_a_crash_survives_a_damaged_newest_manifest() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    a_driver(store, restore=old)
    damage_newest(store, "0000000003/manifest.pb")
    assert a_driver(store).base == ReadyCheckpoint(old)


def test_an_older_epoch_can_be_restored_past_a_commit_that_cannot_be_replayed() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    driver.publish(driver.write_epoch())
    taken = taken_over(store, restore=driver.acknowledged[0])
    assert isinstance(taken.decision, CommitPermit)
    damaged = taken.decision.ref
    again = checkpoints_in(store).resume(taken.claim, unreplayable=damaged)
    assert isinstance(again, TakenOver)
    assert isinstance(again.decision, Recovered)
    assert again.decision.base == ReadyCheckpoint(driver.acknowledged[0])
    assert again.decision.next_epoch == 4


def test_damaged_claims_keep_their_pins_and_stop_nobody() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=3).acknowledged[0]
    driver = a_driver(store, restore=old)
    store.put(paths.claim_path(JOB, 2), b"garbage")
    driver.run_epoch()
    assert pins(store) == [1]
    assert a_driver(store).base == ReadyCheckpoint(driver.acknowledged[0])


def test_a_missing_claim_of_the_newest_epoch_releases_nothing() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=2).acknowledged[0]
    driver = a_driver(store, restore=old)
    outcome = driver.publish(driver.write_epoch())
    assert not isinstance(outcome, ReadyCheckpoint)
    store.delete(paths.claim_path(JOB, 2))
    steps = release_honoured_restores(an_actor(), driver.claim)
    run_steps(store, steps)
    assert pins(store) == [1]


def test_before_the_first_epoch_there_is_nothing_to_release() -> None:
    store = MemoryStore()
    driver = a_driver(store)
    before = store.contents()
    steps = resume(an_actor(), driver.claim)
    assert run_steps(store, steps) == TakenOver(driver.claim, Recovered(None, Epoch(1)))
    assert store.contents() == before
