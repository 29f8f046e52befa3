import pytest

from penstock.core.ids import Epoch, Generation, SavepointName
from penstock.state.protocol import codec, paths
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    assert_acknowledged_epochs_survive,
    assert_commits_were_permitted,
    assert_job_is_whole,
    assert_no_restore_is_left_pinned,
    assert_nothing_was_changed,
    stored_objects,
)
from tests.builders.protocol import JOB, a_record, a_ref
from tests.builders.small_driver import SmallDriver, a_driver, checkpoints_in


@pytest.fixture
def driver() -> SmallDriver:
    driver = a_driver(MemoryStore(), epochs=1)
    driver.checkpoints.pin(SavepointName("good"), Epochs(Epoch(1)))
    driver.run_epochs(4)
    driver.collect()
    return driver


def store_of(driver: SmallDriver) -> MemoryStore:
    store = driver.checkpoints.store
    assert isinstance(store, MemoryStore)
    return store


def test_a_healthy_job_passes_every_check(driver: SmallDriver) -> None:
    assert_job_is_whole(driver.checkpoints)
    assert_acknowledged_epochs_survive(driver.checkpoints, driver.acknowledged)
    assert_commits_were_permitted(driver.checkpoints, driver.sink.commits)
    assert_no_restore_is_left_pinned(driver.checkpoints)


def test_an_open_commit_of_the_newest_epoch_is_no_damage(driver: SmallDriver) -> None:
    driver.publish(driver.write_epoch())
    assert_job_is_whole(driver.checkpoints)


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("/0000000001/counter/", "is gone, and job epoch 1"),
        ("/0000000005/counter/", "is gone, and job epoch 5"),
        ("/0000000004/committed", "is kept, but Committing"),
        ("/0000000004/manifest.pb", "is kept, but Invisible"),
        ("/epochs/0000000004", r"has lost the epochs \[4\]"),
        ("/epochs/0000000001", "good pins job epoch 1.*no record"),
    ],
)
def test_whatever_a_kept_epoch_misses_is_found(
    driver: SmallDriver, part: str, what: str
) -> None:
    if "epochs/0000000004" in part:
        driver.run_epoch()
    for path in store_of(driver).contents():
        if part in path:
            store_of(driver).delete(path)
    with pytest.raises(AssertionError, match=what):
        assert_job_is_whole(driver.checkpoints)


def test_a_file_with_other_bytes_is_found(driver: SmallDriver) -> None:
    path = next(path for path in store_of(driver).contents() if path.endswith(".parquet"))
    store_of(driver).put(path, b"other")
    with pytest.raises(AssertionError, match="is not what was written"):
        assert_job_is_whole(driver.checkpoints)


def test_a_lost_acknowledged_epoch_is_found(driver: SmallDriver) -> None:
    path = paths.epoch_record_path(JOB, 5)
    store_of(driver).delete(path)
    with pytest.raises(AssertionError, match="its record is lost"):
        assert_acknowledged_epochs_survive(driver.checkpoints, driver.acknowledged)
    store_of(driver).put(path, codec.encode(a_record(5, generation=9)))
    with pytest.raises(AssertionError, match="was acknowledged, but its epoch is"):
        assert_acknowledged_epochs_survive(driver.checkpoints, driver.acknowledged)


def test_a_job_that_commits_nothing_needs_no_commits() -> None:
    driver = a_driver(MemoryStore(), epochs=3, needs_commit=False)
    driver.publish(driver.write_epoch())
    assert_job_is_whole(driver.checkpoints)
    assert_commits_were_permitted(driver.checkpoints, [])


def test_an_epoch_given_up_is_not_taken_for_lost(driver: SmallDriver) -> None:
    store_of(driver).delete(paths.epoch_record_path(JOB, 2))
    assert_acknowledged_epochs_survive(driver.checkpoints, driver.acknowledged)


def test_a_commit_without_a_permit_is_found(driver: SmallDriver) -> None:
    commits = driver.sink.commits
    with pytest.raises(AssertionError, match="but its epoch is"):
        assert_commits_were_permitted(
            driver.checkpoints, [*commits, (a_ref(5, generation=7), Generation(7))]
        )
    other = a_driver(store_of(driver), epochs=1)
    with pytest.raises(AssertionError, match="before it existed"):
        assert_commits_were_permitted(
            driver.checkpoints, [(other.acknowledged[0], Generation(1))]
        )


def test_a_marker_without_a_commit_is_found(driver: SmallDriver) -> None:
    with pytest.raises(AssertionError, match="no sink did"):
        assert_commits_were_permitted(driver.checkpoints, driver.sink.commits[:-1])


def test_a_restore_still_pinned_is_found(driver: SmallDriver) -> None:
    a_driver(store_of(driver), restore=driver.acknowledged[0])
    with pytest.raises(AssertionError, match="still pin epochs: restore-"):
        assert_no_restore_is_left_pinned(checkpoints_in(store_of(driver)))


def test_every_change_of_a_store_is_found() -> None:
    store = MemoryStore({"a": b"1", "b": b"2"})
    before = stored_objects(store)
    assert_nothing_was_changed(before, store)
    store.put("a", b"3")
    with pytest.raises(AssertionError, match="a was overwritten"):
        assert_nothing_was_changed(before, store)
    store.delete("a")
    with pytest.raises(AssertionError, match="a was deleted"):
        assert_nothing_was_changed(before, store)
    store.put("a", b"1")
    store.put("c", b"")
    with pytest.raises(AssertionError, match="c was created"):
        assert_nothing_was_changed(before, store)
