from collections.abc import Callable

import pytest

from penstock.core.ids import Epoch, JobId, SavepointName
from penstock.errors import StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import ReadyCheckpoint
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.steps import Request
from penstock.state.protocol.takeover import Recovered, TakenOver, take_over
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import (
    JOB,
    Sleeper,
    a_record,
    a_ref,
    an_actor,
    asking,
    creating,
)
from tests.builders.small_driver import a_driver, checkpoints_in


def abandoned(store: MemoryStore, epoch: int, job: JobId = JOB) -> list[int]:
    plan = checkpoints_in(store, job).plan_restore(Epochs(Epoch(epoch)))
    assert plan.ref.epoch == epoch
    assert plan.complete
    return [ref.epoch for ref in plan.abandoned]


def a_forked_job() -> MemoryStore:
    """1 ← 2 ← 3 ← 4 ← 7 and 3 ← 5 ← 6: a restore of 3, and one back to 4."""
    store = MemoryStore()
    first = a_driver(store, epochs=4)
    a_driver(store, restore=first.acknowledged[2], epochs=2)
    a_driver(store, restore=first.acknowledged[3], epochs=1)
    return store


def test_a_plan_lists_the_epochs_the_job_will_not_build_on_any_more() -> None:
    store = MemoryStore()
    a_driver(store, epochs=5)
    assert abandoned(store, 2) == [5, 4, 3]
    assert abandoned(store, 5) == []


def test_epochs_abandoned_before_are_not_listed_again() -> None:
    assert abandoned(a_forked_job(), 3) == [7, 4]


def test_undoing_a_restore_abandons_also_older_epochs_of_the_other_line() -> None:
    assert abandoned(a_forked_job(), 6) == [7, 4]


def test_planning_changes_nothing() -> None:
    store = a_forked_job()
    before = store.contents()
    abandoned(store, 1)
    assert store.contents() == before


def test_a_savepoint_can_be_restored_by_name() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    plan = driver.checkpoints.plan_restore(Epochs(savepoint=SavepointName("good")))
    assert plan.ref == driver.acknowledged[0]
    assert [ref.epoch for ref in plan.abandoned] == [3, 2]


def test_a_plan_says_when_it_cannot_list_all_because_records_are_gone() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    driver.run_epochs(8)
    driver.collect()
    driver.sweep()
    plan = driver.checkpoints.plan_restore(Epochs(Epoch(1)))
    assert [ref.epoch for ref in plan.abandoned] == [9, 8]
    assert not plan.complete


@pytest.mark.parametrize("number", [3, 2])
def test_a_plan_says_when_it_cannot_list_all_because_a_record_is_damaged(
    number: int,
) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    store.put(paths.epoch_record_path(JOB, number), b"garbage")
    plan = driver.checkpoints.plan_restore(Epochs(Epoch(1)))
    assert plan.ref == driver.acknowledged[0]
    assert not plan.complete


def test_a_record_that_a_sleeper_made_again_is_not_taken_for_an_ancestor() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    path = paths.epoch_record_path(JOB, 2)
    store.put(path, codec.encode(a_record(2, generation=9, parent=a_ref(1))))
    plan = checkpoints_in(store).plan_restore(Epochs(Epoch(1)))
    assert [ref.epoch for ref in plan.abandoned] == [3]
    assert not plan.complete


def test_two_lines_that_never_meet_are_no_reason_to_search_for_ever() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    store.put(paths.epoch_record_path(JOB, 2), codec.encode(a_record(2, parent=None)))
    plan = checkpoints_in(store).plan_restore(Epochs(Epoch(1)))
    assert [ref.epoch for ref in plan.abandoned] == [3, 2]
    assert not plan.complete


def test_a_branch_abandons_only_epochs_of_its_own() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    twig = JobId("twig")
    checkpoints_in(store).branch(twig, Epochs())
    a_driver(store, job=twig, epochs=3)
    assert abandoned(store, 3, twig) == [5, 4]


def test_a_branch_cannot_restore_an_epoch_of_its_origin() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    twig = JobId("twig")
    checkpoints_in(store).branch(twig, Epochs())
    a_driver(store, job=twig, epochs=1)
    with pytest.raises(StateError, match="epoch 2 of twig does not exist"):
        checkpoints_in(store, twig).plan_restore(Epochs(Epoch(2)))


def test_a_plan_for_a_job_without_any_claim_lists_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    store.delete(paths.claim_path(JOB, 1))
    plan = driver.checkpoints.plan_restore(Epochs(Epoch(1)))
    assert (plan.abandoned, plan.complete) == ((), False)


@pytest.mark.parametrize("call", [asking("/claim"), creating("generations/2/claim")])
def test_two_starts_that_ask_for_the_same_restore_at_once_go_back_once(
    call: Callable[[Request], bool],
) -> None:
    store = MemoryStore()
    first = a_driver(store, epochs=3).acknowledged[0]
    late = Sleeper(store, take_over(an_actor("late"), restore=first))
    late.sleep_before(call)
    newest = a_driver(store, restore=first, epochs=1).acknowledged[-1]

    taken = late.wake()

    assert isinstance(taken, TakenOver)
    assert isinstance(taken.decision, Recovered)
    assert taken.decision.base == ReadyCheckpoint(newest)
    assert taken.claim.last_restore == first
    assert checkpoints_in(store).pins() == ()


def test_a_restore_by_hand_goes_back_although_a_start_has_claimed_meanwhile() -> None:
    store = MemoryStore()
    first = a_driver(store, epochs=3).acknowledged[0]
    a_driver(store, restore=first, epochs=1)
    late = Sleeper(store, take_over(an_actor("late"), restore=first, is_by_hand=True))
    late.sleep_before(creating("generations/3/claim"))
    a_driver(store, epochs=1)
    taken = late.wake()
    assert isinstance(taken, TakenOver)
    assert taken.claim.restore == first
