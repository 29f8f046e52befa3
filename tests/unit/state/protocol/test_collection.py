import pytest

from penstock.core.ids import Epoch, Generation, SavepointName
from penstock.errors import CorruptStateError, ErrorCode, UserError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.collection import (
    CollectionDone,
    LeftOff,
    Memory,
    NothingToCollect,
    collect_garbage,
)
from penstock.state.protocol.publication import CommitPermit
from penstock.state.protocol.records import CheckpointManifest, Fenced, RetentionRecord
from penstock.state.protocol.retention import Epochs, read_retention
from penstock.state.protocol.steps import Steps
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing import Fault, FaultMode, FaultyStore, sweep
from penstock.testing.pipelines import assert_job_is_whole, assert_nothing_was_changed
from tests.builders.protocol import JOB, Sleeper, a_ref, an_actor, creating, deleting
from tests.builders.small_driver import QUIET, SmallDriver, a_driver, checkpoints_in


def collected(driver: SmallDriver) -> CollectionDone:
    done = driver.collect()
    assert isinstance(done, CollectionDone)
    return done


def kept(store: MemoryStore) -> list[int]:
    return [status.record.ref.epoch for status in checkpoints_in(store).epochs()]


def in_slots(store: MemoryStore, *epochs: int) -> list[str]:
    folders = [f"/{epoch:010d}/" for epoch in epochs]
    return [path for path in store.contents() if any(f in path for f in folders)]


def collection_steps(driver: SmallDriver, name: str = "sleeper") -> Steps[object]:
    return (
        yield from collect_garbage(
            an_actor(name),
            driver.claim,
            keep_epochs=driver.keep_epochs,
            memory=Memory(),
        )
    )


def test_a_job_without_epochs_has_nothing_to_collect() -> None:
    assert a_driver(MemoryStore()).collect() == NothingToCollect()


def test_a_collection_gives_up_only_epochs_beyond_the_last_ones() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=2)
    assert collected(driver).given_up == tuple(driver.acknowledged[:3])
    assert kept(store) == [5, 4]
    assert_job_is_whole(driver.checkpoints)
    assert in_slots(store, 5, 4)


@pytest.mark.parametrize("keep", [1, 2])
def test_an_open_commit_does_not_count_so_the_last_committed_epochs_are_kept(
    keep: int,
) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=4, keep_epochs=keep)
    permit = driver.publish(driver.write_epoch())
    assert isinstance(permit, CommitPermit)
    collected(driver)
    assert kept(store) == [5, 4, 3][: keep + 1]
    assert driver.checkpoints.plan_restore(Epochs(Epoch(4))).ref == a_ref(4)
    driver.finish(permit)
    collected(driver)
    assert kept(store) == [5, 4][:keep]


def test_a_file_that_a_kept_epoch_refers_to_outlives_the_epoch_that_wrote_it() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=4, keep_epochs=1)
    collected(driver)
    assert all(path.endswith(".parquet") for path in in_slots(store, 2, 3))
    assert len(in_slots(store, 2, 3)) == 2
    assert in_slots(store, 1) == []


def test_metadata_carried_by_reference_outlives_the_epoch_that_wrote_it() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=7, keep_epochs=1)
    collected(driver)
    assert in_slots(store, 4) == [paths.metadata_path(a_ref(4), QUIET, 0)]
    driver.run_epochs(4)
    collected(driver)
    assert in_slots(store, 4) == []


def test_a_second_collection_deletes_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5)
    collected(driver)
    before = store.contents()
    again = collected(driver)
    assert (again.given_up, again.deleted_objects) == ((), 0)
    assert set(store.contents()) - set(before) <= {paths.retention_path(JOB, 2)}


def test_a_carried_file_goes_with_the_last_epoch_that_needs_it() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3, keep_epochs=1)
    collected(driver)
    assert len(in_slots(store, 1)) == 2  # its file, and metadata that later epochs carry
    driver.run_epochs(2)
    collected(driver)
    assert in_slots(store, 1) == []


def test_manifests_go_last_and_oldest_first() -> None:
    store = FaultyStore(MemoryStore())
    driver = a_driver(store, epochs=5, keep_epochs=1)
    collected(driver)
    deleted = [call.path for call in store.calls if call.operation == "delete"]
    manifests = [path for path in deleted if path.endswith("manifest.pb")]
    assert manifests == [paths.manifest_path(ref) for ref in driver.acknowledged[:4]]
    assert deleted[-4:] == manifests


def test_files_go_before_the_metadata_that_names_them() -> None:
    store = FaultyStore(MemoryStore())
    driver = a_driver(store, epochs=2, keep_epochs=1)
    driver.run_epochs(3)
    collected(driver)
    deleted = [call.path for call in store.calls if call.operation == "delete"]
    slot = [path for path in deleted if "/0000000001/" in path]
    kinds = [path.rsplit(".", 1)[-1] for path in slot]
    assert kinds.index("parquet") < kinds.index("metadata") < kinds.index("pb")


def test_an_epoch_is_given_up_in_the_ledger_before_anything_of_it_is_deleted() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3, keep_epochs=1)
    sleeper = Sleeper(store, collection_steps(driver))
    sleeper.sleep_before(deleting())
    state = run_steps(store, read_retention(an_actor()))
    assert state.collected_before == 3
    assert state.collecting == tuple(driver.acknowledged[:2])


def damage(store: MemoryStore, path: str, data: bytes | None) -> None:
    if data is None:
        store.delete(path)
    else:
        store.put(path, data)


DAMAGES = pytest.mark.parametrize(
    "data", [None, b"", b"garbage"], ids=["gone", "empty", "garbage"]
)


@DAMAGES
@pytest.mark.parametrize("epoch", [5, 4])
@pytest.mark.parametrize("which", ["manifest", "metadata", "record"])
def test_what_a_kept_epoch_needs_and_cannot_be_read_stops_a_collection_before_any_change(
    which: str, epoch: int, data: bytes | None
) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5)
    ref = driver.acknowledged[epoch - 1]
    path = {
        "manifest": paths.manifest_path(ref),
        "metadata": driver.checkpoints.manifest(ref).operators[0].subtasks[0].path,
        "record": paths.epoch_record_path(JOB, epoch),
    }[which]
    damage(store, path, data)
    if (which, epoch, data) == ("record", 5, None):
        return  # then epoch 4 is the newest, which is no damage
    before = store.contents()
    with pytest.raises(CorruptStateError) as caught:
        driver.collect()
    assert caught.value.context["path"] == path
    assert_nothing_was_changed(before, store)


def test_metadata_of_another_subtask_in_its_place_stops_a_collection() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5)
    newest, older = (
        driver.checkpoints.manifest(ref) for ref in driver.acknowledged[-1:-3:-1]
    )
    path = newest.operators[0].subtasks[0].path
    other = store.read(older.operators[0].subtasks[0].path)
    assert other is not None
    store.put(path, other)
    with pytest.raises(CorruptStateError) as caught:
        driver.collect()
    assert caught.value.code is ErrorCode.CHECKSUM_MISMATCH


@DAMAGES
@pytest.mark.parametrize("which", ["manifest", "metadata"])
def test_what_only_epochs_to_go_need_does_not_have_to_be_readable(
    which: str, data: bytes | None
) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=6)
    ref = driver.acknowledged[1]
    metadata = driver.checkpoints.manifest(ref).operators[0].subtasks[0].path
    damage(store, metadata if which == "metadata" else paths.manifest_path(ref), data)
    collected(driver)
    driver.sweep()
    assert in_slots(store, 2) == []
    assert_job_is_whole(driver.checkpoints)


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_less_than_the_newest_epoch_is_refused(keep: int) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3, keep_epochs=keep)
    before = store.contents()
    with pytest.raises(UserError, match="at least 1"):
        driver.collect()
    assert store.contents() == before


def test_an_interrupted_collection_is_finished_by_the_next() -> None:
    def prepared() -> MemoryStore:
        return MemoryStore(objects)

    def collect(store: FaultyStore) -> object:
        driver.checkpoints.store = store
        driver.checkpoints.memory = Memory()
        return driver.collect()

    origin = MemoryStore()
    driver = a_driver(origin, epochs=5, keep_epochs=1)
    objects = origin.contents()
    driver.collect()
    left = in_slots(origin, 1, 2, 3, 4)
    fault = Fault(FaultMode.FAIL_BEFORE, operation="delete")
    stops = 0
    for trial in sweep(collect, [fault], make_store=prepared):
        assert trial.error is not None
        store = trial.store.store
        assert isinstance(store, MemoryStore)
        collected(a_driver(store, keep_epochs=1))
        assert in_slots(store, 1, 2, 3, 4) == left
        stops += 1
    assert stops > 10


def test_what_a_dead_driver_gave_up_stays_listed_until_somebody_deletes_it() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3, keep_epochs=1)
    Sleeper(store, collection_steps(driver)).sleep_before(deleting())  # and dies
    successor = a_driver(store, epochs=1, keep_epochs=1)
    assert set(collected(successor).given_up) == {*driver.acknowledged}
    assert set(ledger(store).collecting) == {*driver.acknowledged}
    successor.run_epoch()
    collected(successor)
    assert set(ledger(store).collecting) == {*successor.acknowledged[:1]}


def ledger(store: MemoryStore) -> RetentionRecord:
    return run_steps(store, read_retention(an_actor()))


def test_a_replaced_driver_gives_nothing_up_and_deletes_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=1)
    a_driver(store)
    before = store.contents()
    assert driver.collect() == Fenced(Generation(1))
    assert_nothing_was_changed(before, store)


def test_a_driver_replaced_while_it_decides_deletes_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=1)
    sleeper = Sleeper(store, collection_steps(driver))
    sleeper.sleep_before(creating("retention"))
    a_driver(store, epochs=1, keep_epochs=1)
    before = {path for path in store.contents() if "/retention/" not in path}
    assert sleeper.wake() == Fenced(Generation(1))
    assert before <= set(store.contents())


def test_a_sleeping_collector_that_misses_what_its_successor_deleted_is_fenced() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=1)
    sleeper = Sleeper(store, collection_steps(driver))
    sleeper.sleep_before(lambda request: "manifest" in getattr(request, "path", ""))
    successor = a_driver(store, epochs=6, keep_epochs=1)
    collected(successor)
    successor.sweep()
    before = store.contents()
    assert sleeper.wake() == Fenced(Generation(1))
    assert store.contents() == before


def test_deletions_planned_before_a_driver_slept_hurt_nothing_that_came_since() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=1)
    sleeper = Sleeper(store, collection_steps(driver))
    sleeper.sleep_before(deleting())
    successor = a_driver(store, epochs=3, keep_epochs=2)
    successor.checkpoints.pin(SavepointName("mine"), Epochs())
    sleeper.wake()
    assert_job_is_whole(successor.checkpoints)


def test_a_collection_that_loses_to_a_pin_keeps_the_pinned_epoch() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=5, keep_epochs=1)
    sleeper = Sleeper(store, collection_steps(driver))
    sleeper.sleep_before(creating("retention"))
    driver.checkpoints.pin(SavepointName("mine"), Epochs(Epoch(2)))
    sleeper.wake()
    assert kept(store) == [5, 2]
    assert_job_is_whole(driver.checkpoints)


def test_an_epoch_unpinned_during_a_collection_goes_with_the_next() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2, keep_epochs=1)
    mine = SavepointName("mine")
    driver.checkpoints.pin(mine, Epochs(Epoch(1)))
    driver.run_epochs(3)
    sleeper = Sleeper(store, collection_steps(driver))
    sleeper.sleep_before(deleting())
    driver.checkpoints.unpin(mine)
    sleeper.wake()
    assert in_slots(store, 1)
    assert a_ref(1) in collected(driver).given_up
    assert in_slots(store, 1) == []


def test_a_restored_epoch_stays_as_long_as_the_first_epoch_built_on_it_is_not_published() -> (
    None
):
    store = MemoryStore()
    old = a_driver(store, epochs=5, keep_epochs=1)
    restoring = a_driver(store, restore=old.acknowledged[1], keep_epochs=1)
    collected(restoring)
    assert kept(store) == [5, 2]
    restoring.run_epoch()
    assert_job_is_whole(restoring.checkpoints)


def test_abandoned_epochs_stay_as_long_as_their_neighbours() -> None:
    store = MemoryStore()
    old = a_driver(store, epochs=5, keep_epochs=3)
    driver = a_driver(store, restore=old.acknowledged[2], epochs=2, keep_epochs=3)
    collected(driver)
    assert kept(store) == [7, 6, 5, 4, 3]
    driver.run_epoch()
    collected(driver)
    assert kept(store) == [8, 7, 6]


def test_what_a_driver_remembers_saves_reads_and_changes_nothing() -> None:
    forgetful, remembering = MemoryStore(), MemoryStore()
    reads = {}
    for store, remembers in ((forgetful, False), (remembering, True)):
        counted = FaultyStore(store)
        driver = a_driver(counted, keep_epochs=3)
        for _ in range(8):
            driver.run_epoch()
            if not remembers:
                driver.checkpoints.memory = Memory()
            collected(driver)
        reads[remembers] = sum(call.operation == "read" for call in counted.calls)
    assert reads[True] < reads[False]
    assert kept(forgetful) == kept(remembering)
    assert_job_is_whole(checkpoints_in(remembering))


def test_memory_does_not_grow_with_the_number_of_epochs() -> None:
    driver = a_driver(MemoryStore(), keep_epochs=2)
    sizes = []
    for _ in range(30):
        driver.run_epoch()
        collected(driver)
        memory = driver.checkpoints.memory
        sizes.append(
            (
                len(memory.records),
                len(memory.objects),
                len(memory.files),
                len(memory.deleted),
            )
        )
    assert sizes[-1] == sizes[10]


def test_the_first_epoch_of_a_job_with_one_manifest_is_never_collected() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1, keep_epochs=1)
    assert collected(driver).given_up == ()
    manifest = store.read(paths.manifest_path(a_ref(1)))
    assert manifest is not None
    assert codec.decode(CheckpointManifest, manifest, "").ref == a_ref(1)


def test_a_collection_that_leaves_off_anywhere_is_finished_by_the_next_one() -> None:
    whole = MemoryStore()
    collected(a_driver(whole, epochs=6, keep_epochs=2))
    for limit in range(200):
        store = MemoryStore()
        driver = a_driver(store, epochs=6, keep_epochs=2)
        asked = 0

        def is_over(limit: int = limit) -> bool:
            nonlocal asked
            asked += 1
            return asked > limit

        outcome = driver.checkpoints.collect(driver.claim, keep_epochs=2, is_over=is_over)
        assert_job_is_whole(driver.checkpoints)
        if isinstance(outcome, CollectionDone):
            break
        assert outcome == LeftOff()
        assert asked == limit + 1, "nothing is asked for afterwards"
        collected(driver)
        assert kept(store) == kept(whole) == [6, 5]
        assert len(in_slots(store, 1, 2, 3)) == len(in_slots(whole, 1, 2, 3))
    else:
        raise AssertionError("it never came to its end")
