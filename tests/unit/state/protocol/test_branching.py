import pytest

from penstock.core.ids import Epoch, JobId
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.collection import CollectionDone
from penstock.state.protocol.publication import ReadyCheckpoint
from penstock.state.protocol.records import ClaimRecord, PinKind
from penstock.state.protocol.restoring import branch_job, branch_pin_name
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.steps import Steps
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing.pipelines import assert_job_is_whole
from tests.builders.protocol import JOB, OTHER_JOB, Sleeper, a_claim, an_actor, creating
from tests.builders.small_driver import SmallDriver, a_driver, checkpoints_in

TWIG = JobId("twig")


def branch_steps(
    branch: JobId = TWIG, *, origin: JobId = JOB, epoch: int | None = None
) -> Steps[ClaimRecord]:
    which = Epochs(None if epoch is None else Epoch(epoch))
    return branch_job(an_actor(f"{origin}{epoch}", job=origin), branch, which)


def holders(store: MemoryStore, job: JobId = JOB) -> dict[str, int]:
    pins = checkpoints_in(store, job).pins()
    return {pin.name: pin.ref.epoch for pin in pins if pin.kind is PinKind.BRANCH}


def collect(driver: SmallDriver) -> CollectionDone:
    done = driver.collect()
    assert isinstance(done, CollectionDone)
    return done


def outgrow(driver: SmallDriver) -> None:
    """Run the branch until nothing it keeps refers to its origin, and let that go."""
    for _ in range(8):
        driver.run_epoch()
        if not collect(driver).needs_origin:
            break
    assert driver.checkpoints.release_origin(driver.claim)


def test_a_branch_starts_from_its_origins_epoch_and_goes_on_with_its_numbers() -> None:
    store = MemoryStore()
    origin = a_driver(store, epochs=3)
    claim = run_steps(store, branch_steps())
    assert (claim.origin, claim.first_epoch) == (origin.acknowledged[2], 4)
    driver = a_driver(store, job=TWIG)
    assert driver.base == ReadyCheckpoint(origin.acknowledged[2])
    assert [ref.epoch for ref in driver.run_epochs(2)] == [4, 5]
    assert a_driver(store, job=TWIG).next_epoch == 6


def test_making_a_branch_copies_nothing() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    before = set(store.contents())
    run_steps(store, branch_steps())
    assert set(store.contents()) - before == {
        paths.retention_path(JOB, 1),
        paths.claim_path(TWIG, 1),
    }


def test_the_origin_is_pinned_before_the_branch_exists() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    making = Sleeper(store, branch_steps())
    making.sleep_before(creating("claim"))
    assert holders(store) == {branch_pin_name(TWIG): 3}
    (pin,) = checkpoints_in(store).pins()
    assert pin.holder == TWIG


def test_the_origin_keeps_what_its_branch_needs_and_no_longer() -> None:
    store = MemoryStore()
    origin = a_driver(store, epochs=3, keep_epochs=1)
    run_steps(store, branch_steps())
    origin.run_epochs(5)
    collect(origin)
    branch = a_driver(store, job=TWIG, keep_epochs=1, epochs=1)
    assert collect(branch).needs_origin
    assert_job_is_whole(branch.checkpoints)
    outgrow(branch)
    assert holders(store) == {}
    collect(origin)
    assert not any(
        "/0000000003/" in path and path.startswith("job/") for path in store.contents()
    )
    assert_job_is_whole(branch.checkpoints)
    assert_job_is_whole(origin.checkpoints)


def test_a_branch_deletes_nothing_of_its_origin() -> None:
    store = MemoryStore()
    a_driver(store, epochs=3)
    run_steps(store, branch_steps())
    before = {p: d for p, d in store.contents().items() if p.startswith("job/generations")}
    branch = a_driver(store, job=TWIG, keep_epochs=1, epochs=7)
    collect(branch)
    branch.sweep()
    assert before.items() <= store.contents().items()


def test_a_branch_of_a_branch_keeps_both_until_it_has_outgrown_them() -> None:
    store = MemoryStore()
    root = a_driver(store, epochs=3, keep_epochs=1)
    run_steps(store, branch_steps())
    twig = a_driver(store, job=TWIG, keep_epochs=1, epochs=1)
    run_steps(store, branch_steps(JobId("leaf"), origin=TWIG))
    leaf = a_driver(store, job=JobId("leaf"), keep_epochs=1, epochs=1)
    for driver in (root, twig):
        driver.run_epochs(6)
        collect(driver)
        driver.sweep()
    assert collect(twig).needs_origin  # for the leaf's sake
    assert_job_is_whole(leaf.checkpoints)
    outgrow(leaf)
    assert holders(store, TWIG) == {}
    collect(twig)  # deletes what only the leaf needed
    assert not collect(twig).needs_origin
    assert twig.checkpoints.release_origin(twig.claim)
    for driver in (root, twig, leaf):
        collect(driver)
        assert_job_is_whole(driver.checkpoints)


def test_releasing_the_origin_of_a_job_that_has_none_does_nothing() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=1)
    before = store.contents()
    assert not driver.checkpoints.release_origin(driver.claim)
    assert store.contents() == before


def refused(store: MemoryStore, steps: Steps[ClaimRecord]) -> None:
    with pytest.raises(StateError, match="job 'twig' already exists") as caught:
        run_steps(store, steps)
    assert caught.value.code is ErrorCode.JOB_EXISTS


def test_a_job_that_exists_cannot_become_a_branch() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    a_driver(store, job=TWIG)
    before = store.contents()
    refused(store, branch_steps())
    assert store.contents() == before


def test_a_branch_that_loses_its_name_to_another_job_lets_its_origin_go() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    making = Sleeper(store, branch_steps())
    making.sleep_before(creating("claim"))
    store.create(paths.claim_path(TWIG, 1), codec.encode(a_claim(1, job=TWIG)))
    with pytest.raises(StateError, match="already exists"):
        making.wake()
    assert holders(store) == {}


def test_of_two_branches_of_one_name_from_two_origins_one_is_made() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    a_driver(store, job=OTHER_JOB, epochs=2)
    making = Sleeper(store, branch_steps())
    making.sleep_before(creating("claim"))
    run_steps(store, branch_steps(origin=OTHER_JOB))
    with pytest.raises(StateError, match="already exists"):
        making.wake()
    assert (holders(store), holders(store, OTHER_JOB)) == ({}, {branch_pin_name(TWIG): 2})


def test_the_same_branch_made_twice_at_once_keeps_its_pin() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    making = Sleeper(store, branch_steps())
    making.sleep_before(creating("claim"))
    run_steps(store, branch_steps(epoch=2))
    with pytest.raises(StateError, match="already exists"):
        making.wake()
    assert holders(store) == {branch_pin_name(TWIG): 2}


def test_a_branch_left_half_made_can_be_made_again() -> None:
    store = MemoryStore()
    a_driver(store, epochs=2)
    Sleeper(store, branch_steps()).sleep_before(creating("claim"))  # and dies
    claim = run_steps(store, branch_steps())
    assert claim.first_epoch == 3
