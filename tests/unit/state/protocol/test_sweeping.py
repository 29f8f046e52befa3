import pytest

from penstock.core.ids import Epoch, Generation, SavepointName
from penstock.errors import CorruptStateError
from penstock.state.protocol import paths
from penstock.state.protocol.collection import (
    Memory,
    NothingToCollect,
    SweepDone,
    sweep_orphans,
)
from penstock.state.protocol.publication import LostEpoch
from penstock.state.protocol.records import Fenced
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.steps import find_newest
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing import Fault, FaultMode, FaultyStore
from penstock.testing.pipelines import assert_job_is_whole
from tests.builders.protocol import (
    JOB,
    OPERATOR,
    RULES,
    TABLE,
    Sleeper,
    a_ref,
    a_token,
    an_actor,
    deleting,
)
from tests.builders.small_driver import SmallDriver, a_driver, checkpoints_in


def swept(driver: SmallDriver) -> int:
    done = driver.sweep()
    assert isinstance(done, SweepDone)
    return done.deleted_objects


def orphan(store: MemoryStore, epoch: int, *, generation: int = 1) -> str:
    """Leave the file of an attempt that failed."""
    ref = a_ref(epoch, generation=generation)
    path = paths.table_checkpoint_path(ref, OPERATOR, TABLE, 0, a_token("failed"))
    store.create(path, b"left behind")
    return path


def test_a_job_without_epochs_has_nothing_to_sweep() -> None:
    assert a_driver(MemoryStore()).sweep() == NothingToCollect()


def test_files_of_failed_attempts_go_once_no_epoch_could_adopt_them() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=9)
    left = [orphan(store, epoch) for epoch in range(1, 8)]
    swept(driver)
    assert [path in store.contents() for path in left] == [False] * 3 + [True] * 4
    assert_job_is_whole(driver.checkpoints)


def test_a_checkpoint_that_lost_its_epoch_is_swept_whole() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=1)
    lost = old.write_epoch()
    driver = a_driver(store, epochs=1)
    assert isinstance(old.publish(lost), Fenced)
    driver.run_epochs(3)
    swept(driver)
    assert not any(
        path.startswith(paths.checkpoint_folder(lost.ref)) for path in store.contents()
    )
    assert_job_is_whole(driver.checkpoints)


def test_unacknowledged_manifests_and_stray_markers_are_swept() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=6)
    stray = [
        paths.manifest_path(a_ref(2, generation=9)),
        paths.marker_path(a_ref(2, generation=9)),
        paths.metadata_path(a_ref(2, generation=9), OPERATOR, 0),
    ]
    for path in stray:
        store.put(path, b"anything")
    swept(driver)
    assert not set(stray) & set(store.contents())


def test_what_pins_and_kept_epochs_need_is_not_swept() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2)
    driver.checkpoints.pin(SavepointName("mine"), Epochs(Epoch(1)))
    driver.run_epochs(9)
    driver.collect()
    swept(driver)
    assert [s.record.ref.epoch for s in driver.checkpoints.epochs()] == [11, 10, 1]
    assert_job_is_whole(driver.checkpoints)


def test_what_is_not_recognised_is_left_alone() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=6)
    foreign = ["job/generations/notes.txt", "job/generations/1/notes.txt", "job/notes.txt"]
    foreign += ["job/epochs/notes.txt", "job/retention/notes.txt", "other/x"]
    for path in foreign:
        store.put(path, b"not ours")
    swept(driver)
    assert set(foreign) <= set(store.contents())


def test_a_second_sweep_deletes_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=12)
    driver.collect()
    assert swept(driver) > 0
    assert swept(driver) == 0


def test_old_records_are_thinned_out_and_the_newest_is_still_found() -> None:
    store = MemoryStore()
    driver = a_driver(store, keep_epochs=1)
    for _ in range(11):
        driver.run_epoch()
        driver.collect()
    swept(driver)
    found = sorted(
        number for path in store.contents() if (number := paths.number_of(path)) is not None
    )
    assert found == [1, 1, 5, 5, 9, 9, 10, 10, 11]
    newest = find_newest(
        lambda epoch: paths.epoch_record_path(JOB, epoch),
        first=1,
        stride=RULES.waypoint_stride,
    )
    assert run_steps(store, newest) == 11
    assert a_driver(store).next_epoch == 12


def test_records_of_kept_epochs_are_not_thinned_out() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3, keep_epochs=1)
    driver.checkpoints.pin(SavepointName("mine"), Epochs(Epoch(3)))
    driver.run_epochs(8)
    driver.collect()
    swept(driver)
    assert store.read(paths.epoch_record_path(JOB, 3)) is not None
    assert store.read(paths.epoch_record_path(JOB, 2)) is None


def test_a_thinned_record_made_again_by_a_sleeper_gives_it_nothing() -> None:
    store = MemoryStore()
    sleeper = a_driver(store, epochs=1, keep_epochs=1)
    manifest = sleeper.write_epoch()
    driver = a_driver(store, epochs=9, keep_epochs=1)
    driver.collect()
    swept(driver)
    assert store.read(paths.epoch_record_path(JOB, 2)) is None
    outcome = sleeper.publish(manifest)
    assert isinstance(outcome, Fenced)
    assert sleeper.sink.refs == {a_ref(1)}
    assert_job_is_whole(driver.checkpoints)
    assert a_driver(store).base == driver.base


def test_a_replaced_driver_sweeps_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=6)
    orphan(store, 1)
    a_driver(store)
    before = store.contents()
    assert driver.sweep() == Fenced(Generation(1))
    assert store.contents() == before


def test_a_sweep_planned_before_its_driver_slept_hurts_nothing_that_came_since() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=6)
    orphan(store, 1)
    steps = sweep_orphans(an_actor(), driver.claim, memory=Memory())
    sleeper = Sleeper(store, steps)
    sleeper.sleep_before(deleting())
    successor = a_driver(store, restore=driver.acknowledged[4], epochs=2)
    sleeper.wake()
    assert_job_is_whole(successor.checkpoints)


def test_a_driver_that_slept_while_its_attempt_was_swept_cannot_publish_it() -> None:
    store = MemoryStore()
    sleeper = a_driver(store, epochs=1)
    manifest = sleeper.write_epoch()
    driver = a_driver(store, epochs=4)
    swept(driver)
    file = next(iter(manifest.operators[0].subtasks)).path
    assert store.read(file) is None
    assert isinstance(sleeper.publish(manifest), Fenced)
    assert_job_is_whole(driver.checkpoints)


def test_a_stale_listing_only_makes_a_sweep_delete_less() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=9)
    before = len(store.contents())
    stale = FaultyStore(store, Fault(FaultMode.STALE_LIST, at=None))
    left = orphan(store, 1)
    driver.checkpoints.store = stale
    assert swept(driver) == 0
    assert left in store.contents()
    assert len(store.contents()) == before + 1


def test_a_kept_epoch_that_cannot_be_read_stops_a_sweep_before_any_delete() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=6)
    orphan(store, 1)
    store.put(paths.manifest_path(driver.acknowledged[-1]), b"garbage")
    before = store.contents()
    with pytest.raises(CorruptStateError):
        driver.sweep()
    assert store.contents() == before


def test_a_lost_epoch_is_adopted_whole_although_sweeps_ran_meanwhile() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=4)
    manifest = old.write_epoch()
    new = a_driver(store)
    swept(new)
    assert isinstance(old.publish(manifest), Fenced)
    assert isinstance(new.publish(new.write_epoch()), LostEpoch)
    new.start().run_epoch()
    assert_job_is_whole(checkpoints_in(store))
