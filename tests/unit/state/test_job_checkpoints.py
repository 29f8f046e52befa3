import pytest

from penstock.core.ids import Epoch, JobId, SavepointName
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol import paths
from penstock.state.protocol.collection import CollectionDone, SweepDone
from penstock.state.protocol.records import Committing, PinKind, Ready
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import FaultyStore
from tests.builders.protocol import JOB, a_ref
from tests.builders.small_driver import a_driver, checkpoints_in


def canonical(checkpoints: JobCheckpoints) -> dict[int, bool | None]:
    return {status.record.ref.epoch: status.canonical for status in checkpoints.epochs()}


def test_a_job_that_does_not_exist_has_no_epochs_and_no_pins() -> None:
    checkpoints = checkpoints_in(MemoryStore())
    assert checkpoints.epochs() == ()
    assert checkpoints.pins() == ()


def test_a_job_that_has_not_published_has_no_epochs() -> None:
    assert a_driver(MemoryStore()).checkpoints.epochs() == ()


def test_epochs_are_listed_newest_first_with_status_and_savepoints() -> None:
    driver = a_driver(MemoryStore(), epochs=2)
    driver.publish(driver.write_epoch())
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    newest, middle, oldest = driver.checkpoints.epochs()
    assert isinstance(newest.status, Committing)
    assert isinstance(middle.status, Ready)
    assert [status.savepoints for status in (newest, middle, oldest)] == [(), (), ("good",)]
    assert canonical(driver.checkpoints) == {3: True, 2: True, 1: True}


def test_epochs_a_restore_abandoned_are_marked() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=4)
    driver = a_driver(store, restore=old.acknowledged[1], epochs=1)
    assert canonical(driver.checkpoints) == {5: True, 4: False, 3: False, 2: True, 1: True}


def test_it_is_not_claimed_that_a_restore_abandoned_an_old_savepoint() -> None:
    driver = a_driver(MemoryStore(), epochs=2)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    driver.run_epochs(4)
    driver.collect()
    assert canonical(driver.checkpoints) == {6: True, 5: True, 1: None}


def test_a_pinned_epoch_without_a_record_is_left_out_of_the_list() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(2)))
    driver.run_epochs(3)
    driver.collect()
    store.delete(paths.epoch_record_path(JOB, 2))
    assert canonical(driver.checkpoints) == {5: True, 4: True}


def test_what_acts_by_a_claim_acts_on_the_job_of_the_claim() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    driver.run_epochs(4)
    others = JobCheckpoints(store, JobId("other"))
    assert isinstance(others.collect(driver.claim, keep_epochs=2), CollectionDone)
    assert isinstance(others.sweep(driver.claim), SweepDone)
    assert driver.checkpoints.manifest(driver.acknowledged[0]).ref.epoch == 1
    assert not list(store.list("other"))


def test_the_epochs_of_a_branch_are_its_own() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    twig = JobId("twig")
    checkpoints_in(store).branch(twig, Epochs())
    driver = a_driver(store, job=twig, epochs=2)
    assert canonical(driver.checkpoints) == {5: True, 4: True}


def test_a_missing_manifest_is_an_error_with_its_path() -> None:
    with pytest.raises(CorruptStateError, match=r"manifest\.pb' is missing") as caught:
        checkpoints_in(MemoryStore()).manifest(a_ref(1))
    assert caught.value.code is ErrorCode.OBJECT_MISSING


def test_pins_are_listed_with_their_kind() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    driver.checkpoints.branch(JobId("twig"), Epochs(Epoch(2)))
    a_driver(store, restore=driver.acknowledged[2])
    kinds = {pin.kind: pin.ref.epoch for pin in driver.checkpoints.pins()}
    assert kinds == {PinKind.SAVEPOINT: 1, PinKind.BRANCH: 2, PinKind.RESTORE: 3}
    assert driver.checkpoints.unpin(SavepointName("good"))
    assert not driver.checkpoints.unpin(SavepointName("good"))


def test_publishing_costs_three_creates_and_one_look_at_the_fence() -> None:
    store = FaultyStore(MemoryStore())
    driver = a_driver(store, epochs=5)
    manifest = driver.write_epoch()
    before = len(store.calls)
    outcome = driver.publish(manifest)
    driver.finish(outcome)  # type: ignore[arg-type] # it is neither lost nor fenced
    operations = [call.operation for call in store.calls[before:]]
    assert operations == ["create", "create", "size", "create"]


def test_collecting_and_sweeping_tell_what_they_did() -> None:
    driver = a_driver(MemoryStore(), epochs=6)
    collected, swept = driver.collect(), driver.sweep()
    assert isinstance(collected, CollectionDone)
    assert isinstance(swept, SweepDone)
    assert len(collected.given_up) == 4
    assert collected.deleted_objects > 4
    assert not collected.needs_origin


def test_every_actor_of_the_ledger_has_a_token_of_its_own() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    for name in ("one", "two"):
        driver.checkpoints.pin(SavepointName(name), Epochs())
    records = [data for path, data in store.contents().items() if "/retention/" in path]
    assert len({data[-60:] for data in records}) == 2


def test_a_start_goes_on_from_a_restore_until_an_epoch_after_it_is_published() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    assert driver.checkpoints.base() == driver.acknowledged[2]
    restored = a_driver(store, restore=driver.acknowledged[1])
    assert restored.checkpoints.base() == driver.acknowledged[1]
    assert (
        restored.checkpoints.base(restore=driver.acknowledged[0])
        == (driver.acknowledged[0])
    )
    published = restored.run_epoch()
    assert restored.checkpoints.base() == published


def test_a_branch_without_epochs_would_go_on_from_its_origin() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    driver.checkpoints.branch(JobId("branch"), Epochs())
    branch = checkpoints_in(store, JobId("branch"))
    assert branch.base() == driver.acknowledged[2]
    assert branch.last_epoch() == 3


def test_a_job_that_does_not_exist_would_start_empty() -> None:
    checkpoints = checkpoints_in(MemoryStore())
    assert checkpoints.base() is None
    assert checkpoints.last_epoch() == 0
