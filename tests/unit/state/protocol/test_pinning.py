import pytest

from penstock.core.ids import Epoch, SavepointName
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol.collection import CollectionDone
from penstock.state.protocol.records import Pin, PinKind
from penstock.state.protocol.retention import Epochs, pin_epoch, unpin
from penstock.state.protocol.steps import Steps
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import Sleeper, an_actor, creating
from tests.builders.small_driver import SmallDriver, a_driver, checkpoints_in

MINE, OTHER = SavepointName("mine"), SavepointName("other")


def pin_steps(name: SavepointName = MINE, which: Epochs | None = None) -> Steps[Pin]:
    return pin_epoch(an_actor(name), name, PinKind.SAVEPOINT, which or Epochs())


def pin(store: MemoryStore, name: SavepointName = MINE, epoch: int | None = None) -> Pin:
    which = Epochs(None if epoch is None else Epoch(epoch))
    return run_steps(store, pin_steps(name, which))


def pinned(store: MemoryStore) -> dict[str, int]:
    return {pin.name: pin.ref.epoch for pin in checkpoints_in(store).pins()}


def refused(store: MemoryStore, match: str, epoch: int | None = None) -> None:
    before = store.contents()
    with pytest.raises(StateError, match=match) as caught:
        pin(store, epoch=epoch)
    assert caught.value.code is ErrorCode.NOT_RESTORABLE
    assert store.contents() == before


def test_the_newest_epoch_is_pinned_unless_another_is_named() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    assert pin(store).ref.epoch == 3
    assert pin(store, OTHER, 2).ref.epoch == 2
    assert pinned(store) == {"mine": 3, "other": 2}


def test_pinning_again_is_fine() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    assert pin(store, epoch=1).ref == pin(store, epoch=1).ref
    assert pinned(store) == {"mine": 1}


def test_a_name_that_pins_another_epoch_is_refused() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    pin(store, epoch=1)
    refused(store, "already has a savepoint 'mine', of epoch 1", epoch=2)


def test_a_job_that_does_not_exist_cannot_be_pinned() -> None:
    refused(MemoryStore(), "there is no job 'job' here")


def test_a_job_without_epochs_has_nothing_to_pin() -> None:
    store = MemoryStore()
    a_driver(store)
    refused(store, r"epoch \? of job does not exist")


def test_an_epoch_that_does_not_exist_yet_is_refused() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    refused(store, "epoch 9 of job does not exist", epoch=9)


def test_an_epoch_given_up_is_refused_and_the_error_says_what_is_left() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    pin(store, OTHER, 1)
    driver.run_epochs(3)
    driver.collect()
    refused(
        store, r"epochs from 4 on are, and these savepoints: other \(epoch 1\)", epoch=2
    )


def test_an_epoch_whose_sinks_have_not_committed_is_refused() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1)
    driver.publish(driver.write_epoch())
    refused(store, "epoch 2 of job is committing: start the job once", epoch=2)


def test_an_epoch_whose_manifest_vanished_is_refused() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    for path in store.contents():
        if path.endswith("1/manifest.pb") and "/0000000001/" in path:
            store.delete(path)
    refused(store, "epoch 1 of job is invisible: choose another", epoch=1)
    assert driver.base is not None


def test_a_pinned_epoch_outlives_any_collection_and_goes_when_it_is_unpinned() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1, keep_epochs=1)
    first = driver.acknowledged[0]
    pin(store, epoch=1)
    driver.run_epochs(4)
    driver.collect()
    assert driver.checkpoints.manifest(first).ref == first
    assert run_steps(store, unpin(an_actor(), [MINE]))
    done = driver.collect()
    assert isinstance(done, CollectionDone)
    assert first in done.given_up
    assert not any("/0000000001/manifest" in path for path in store.contents())


def test_unpinning_tells_whether_there_was_a_pin() -> None:
    store = MemoryStore()
    a_driver(store, epochs=1)
    before = store.contents()
    assert not run_steps(store, unpin(an_actor(), [MINE]))
    assert store.contents() == before


def test_several_pins_are_removed_in_one_record_and_absent_ones_do_not_matter() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    pin(store, MINE, 1)
    pin(store, OTHER, 2)
    names = frozenset({MINE, OTHER, SavepointName("never")})
    run_steps(store, unpin(an_actor(), names))
    assert pinned(store) == {}
    assert sum("/retention/" in path for path in store.contents()) == 3


def sleeping_pin(store: MemoryStore, driver: SmallDriver, epoch: int) -> Sleeper[Pin]:
    sleeper = Sleeper(store, pin_steps(MINE, Epochs(Epoch(epoch))))
    sleeper.sleep_before(creating("retention"))
    return sleeper


def test_a_pin_that_loses_to_a_collection_finds_the_epoch_given_up() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=4, keep_epochs=1)
    sleeper = sleeping_pin(store, driver, 2)
    driver.collect()
    with pytest.raises(StateError, match="no longer kept"):
        sleeper.wake()
    assert pinned(store) == {}


def test_a_pin_that_loses_to_another_pin_tries_again() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    sleeper = sleeping_pin(store, driver, 2)
    pin(store, OTHER, 1)
    assert sleeper.wake().ref.epoch == 2
    assert pinned(store) == {"mine": 2, "other": 1}


def test_an_unpin_that_loses_to_another_change_tries_again() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    pin(store)
    sleeper = Sleeper(store, unpin(an_actor("leaving"), [MINE]))
    sleeper.sleep_before(creating("retention"))
    pin(store, OTHER, 1)
    assert sleeper.wake()
    assert pinned(store) == {"other": 1}


def test_a_savepoint_is_found_by_its_name() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    pin(store, epoch=1)
    again = run_steps(store, pin_steps(OTHER, Epochs(savepoint=MINE)))
    assert again.ref.epoch == 1


def test_an_unknown_savepoint_is_refused_and_the_error_lists_the_known_ones() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    which = Epochs(savepoint=SavepointName("mime"))
    with pytest.raises(StateError, match="has no savepoint 'mime'; it has: none"):
        run_steps(store, pin_steps(OTHER, which))
    pin(store)
    with pytest.raises(StateError, match="has no savepoint 'mime'; it has: mine"):
        run_steps(store, pin_steps(OTHER, which))
